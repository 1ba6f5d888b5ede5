"""Studies: a file (`config`) becomes cells (`plan`) that run (`run`) and leave `records`.

Every method is compared with plain (`comparison`), seed by seed, and a page tells it (`report`).
"""
