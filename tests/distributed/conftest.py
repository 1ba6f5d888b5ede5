collect_ignore = ["worker.py", "fsdp_worker.py"]  # programs for torchrun, not modules
