# programs for torchrun, not modules
collect_ignore_glob = ["*worker.py"]
