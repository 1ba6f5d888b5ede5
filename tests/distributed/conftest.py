# programs for torchrun, not modules
collect_ignore = [
    "worker.py",
    "fsdp_worker.py",
    "fsdp_trainer_worker.py",
    "train_worker.py",
    "cli_worker.py",
]
