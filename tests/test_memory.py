"""What a step frees stays with the process."""

import platform
import resource

import pytest

from smoothtune.memory import keep_freed_memory

SIZE = 40 * 2**20  # above all that glibc's malloc keeps by itself


def faults_of_new_blocks():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(SIZE) for _ in range(4)]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return after - before, len(blocks)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's malloc")
def test_freed_blocks_come_back_without_page_faults():
    pages = SIZE // resource.getpagesize()
    assert keep_freed_memory()
    faults_of_new_blocks()
    faults, blocks = faults_of_new_blocks()
    assert faults < 0.1 * blocks * pages
