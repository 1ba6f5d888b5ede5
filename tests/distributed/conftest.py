collect_ignore = [  # programs for torchrun, not modules
    "worker.py",
    "fsdp_worker.py",
    "decoder_worker.py",
    "decoder_fsdp_worker.py",
]
