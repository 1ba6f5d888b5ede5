"""What a step costs on one accelerator, in less than 240 seconds with its imports.

    python benchmarks/gpu_cost.py [--budget 220] [--device cuda] [--data DIR] [--tiny]
        [--only TEXT ...] [--methods NAME ...] [--output benchmarks/results/gpu-cost]

Random weights and tokens, dropout on, fused AdamW, no run-up of terms. A way to take a step takes
turns with a loop without smoothtune on the same batch; the device is waited for around each step,
and a ratio is one of a round. Sections come in the order of their importance, and each has a part
of the budget; what there was no time for is named. `FLOPs`: those of a step over the loop's, the
ratio that a method would have if nothing else cost time. `over`: ratio / FLOPs. `kernels`: started
in a step; `busy`: their time over that of the step; `waits`: places that wait for the device.
Memory is that of a step above what is held between steps.

`--only` takes the sections whose name has one of the texts, in their order, and `--methods` these
rows of them. With `--data`, a folder with SST-2 in `sst2`, there are whole trainings of MiniLM:
run_glue's plain fine-tuning and `smoothtune train` plain, with LNSR and with R3F. Every row is
written as it comes, to OUTPUT.jsonl, and all at the end, or when the budget is used up, to
OUTPUT.md. With `--device cpu --tiny` it shows that it works.
"""

import argparse
import contextlib
import copy
import gc
import io
import logging
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import transformers
from gpu_page import STARTED, Page, Row
from gpu_ways import PEERS, Way, acting, twice
from host_time import model_loss
from torch import nn
from torch.profiler import ProfilerActivity, profile

from smoothtune import L2SP, LNSR, METHODS, R3F, Plain, regularize

RESULTS = Path(__file__).parent / "results"
ROUNDS = 8
FEW = ("plain", "lnsr", "r3f", "smart", "freelb", "jachess", "uegr", "mixout")


class Program:
    """What is measured, on which device, until when."""

    def __init__(self, arguments: argparse.Namespace, page: Page):
        self.device, self.tiny, self.page = torch.device(arguments.device), arguments.tiny, page
        self.gpu, self.budget, self.data = (
            self.device.type == "cuda",
            arguments.budget,
            arguments.data,
        )

    def left(self) -> float:
        """Seconds of the budget."""
        return self.budget - (time.perf_counter() - STARTED)

    def wait(self) -> None:
        """For all that the device was sent."""
        if self.gpu:
            torch.cuda.synchronize()

    # --- models and batches --------------------------------------------------------------------

    def bert(self, layers: int, width: int) -> nn.Module:
        """In training mode, dropout 0.1."""
        layers, width = (2, 32) if self.tiny else (layers, width)
        config = transformers.BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=max(2, width // 64) if width != 384 else 12,
            intermediate_size=4 * width,
            vocab_size=500 if self.tiny else 30522,
            num_labels=2,
        )
        torch.manual_seed(0)
        with self.device:
            return transformers.BertForSequenceClassification(config).train()

    def llama(self) -> nn.Module:
        """The size of TinyLlama, 1.1 billion weights in bf16, with LoRA adapters in float32."""
        from peft import LoraConfig, get_peft_model

        sizes = (32, 64, 2, 4, 2) if self.tiny else (2048, 5632, 22, 32, 4)
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        config = transformers.LlamaConfig(
            **dict(zip((*names, "num_key_value_heads"), sizes, strict=True)),
            vocab_size=500 if self.tiny else 32000,
            num_labels=2,
            pad_token_id=0,
            use_cache=False,
        )
        torch.manual_seed(0)
        with self.device:
            model = transformers.LlamaForSequenceClassification(config).to(torch.bfloat16)
        adapters = LoraConfig(task_type="SEQ_CLS", r=8, target_modules="all-linear")
        adapted = get_peft_model(model, adapters).train()
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
        return adapted

    def batch(self, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        """Random tokens."""
        rows, tokens = (4, 12) if self.tiny else (rows, tokens)
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(5, 500 if self.tiny else 30000, (rows, tokens), generator=generator)
        labels = torch.randint(2, (rows,), generator=generator)
        made = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        return {name: value.to(self.device) for name, value in made.items()}

    # --- measuring -----------------------------------------------------------------------------

    def timed(self, way: Way, batch: dict[str, torch.Tensor]) -> float:
        """Seconds of a step."""
        self.wait()
        start = time.perf_counter()
        way.step(batch)
        self.wait()
        return time.perf_counter() - start

    def looked_into(self, way: Way, batch: dict[str, torch.Tensor], row: Row) -> None:
        """Kernels, memory and waits of a step, where there is a GPU."""
        if not self.gpu:
            return
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        way.step(batch)
        self.wait()
        row.gib = (torch.cuda.max_memory_allocated() - held) / 2**30
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                way.step(batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        row.waits = sum("synchronizing" in str(each.message) for each in noted)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            way.step(batch)
            self.wait()
        kernels = [e for e in profiler.events() if "CUDA" in str(e.device_type)]
        kernels = [e for e in kernels if not e.name.startswith(("Optimizer.", "ProfilerStep"))]
        row.kernels = len(kernels)
        row.busy = sum(e.time_range.elapsed_us() for e in kernels) / 1e3 / (row.ms or 1)

    def measure(
        self, section: str, name: str, base: Way, make: Callable[[], Way], batch: dict
    ) -> None:
        """A row of one way beside the loop."""
        row = Row(section, name)
        try:
            way = make()
            for _ in range(3):
                way.step(batch)
            pairs = [(self.timed(base, batch), self.timed(way, batch)) for _ in range(ROUNDS)]
            ratios = [own / plain for plain, own in pairs]
            row.ratio, row.low, row.high = median(ratios), min(ratios), max(ratios)
            row.ms = 1e3 * median(own for _, own in pairs)
            row.flops = way.flops(batch) / base.flops(batch)
            self.looked_into(way, batch, row)
            way.close()
        except Exception as error:  # the others are to be measured all the same
            row.note = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        self.page.add(row)
        gc.collect()

    def section(
        self,
        name: str,
        part: float,
        model: nn.Module,
        batch: dict[str, torch.Tensor],
        ways: dict[str, Callable],
        autocast: torch.dtype | None = None,
    ) -> None:
        """Rows of several ways, in a part of the budget."""
        until = time.perf_counter() + min(part * self.budget, self.left() - 5)
        base = Way(model, model_loss, autocast)
        for _ in range(3):
            base.step(batch)
        for way, make in ways.items():
            if time.perf_counter() > until:
                self.page.add(Row(section=name, way=way, note="no time"))
                continue
            self.measure(name, way, base, lambda m=make: Way(model, m(), autocast), batch)


# --- sections -------------------------------------------------------------------------------------


def trainers(program: Program, name: str, model: nn.Module, rows: int, tokens: int) -> None:
    """The user's Trainer beside `regularize(trainer, ...)`."""
    batch, steps = program.batch(rows, tokens), 15 if program.tiny else 30
    columns = {key: value.cpu() for key, value in batch.items()}
    size = len(columns["labels"])
    examples = [{k: v[i % size] for k, v in columns.items()} for i in range(size * steps)]

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 5:
                program.wait()
                self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == steps:
                program.wait()
                self.seconds = (time.perf_counter() - self.start) / (steps - 5)

    def seconds(make: Callable | None) -> float:
        clock = Clock()
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=size,
            max_steps=steps,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=10**6,
            optim="adamw_torch_fused",
            use_cpu=not program.gpu,
            dataloader_pin_memory=program.gpu,
        )
        trainer = transformers.Trainer(
            copy.deepcopy(model), arguments, train_dataset=examples, callbacks=[clock]
        )
        if make is not None:
            regularize(trainer, make())
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        return clock.seconds

    ways = {
        "Trainer": None,
        "`regularize(trainer, Plain())`": Plain,
        "`regularize(trainer, L2SP())`": L2SP,
        "`regularize(trainer, R3F(weight=1))`": lambda: R3F(weight=1.0),
        "`regularize(trainer, LNSR())`": lambda: LNSR(ramp_start=0),
    }
    with tempfile.TemporaryDirectory() as folder:
        seconds(None)
        taken = [{way: seconds(make) for way, make in ways.items()} for _ in range(3)]
    for way in ways:
        ratios = [each[way] / each["Trainer"] for each in taken]
        ms = 1e3 * median(each[way] for each in taken)
        program.page.add(Row(name, way, median(ratios), min(ratios), max(ratios), ms=ms))


def whole_trainings(program: Program) -> None:
    """run_glue's plain fine-tuning beside `smoothtune train`, on SST-2 with its real lengths."""
    from plain_training import like_run_glue, ours, watch

    rows, base = 320 if program.tiny else 6400, None
    noted = watch(time.perf_counter)
    for way in ("run_glue, padded to the longest of a batch", "plain", "lnsr", "r3f"):
        if program.left() < 30:
            program.page.add(Row("SST-2, whole trainings of MiniLM", way, note="no time"))
            continue
        noted.clear()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            if base is None:
                like_run_glue(
                    program.data, "sst2", rows, folder, 0, dynamic=True, cpu=not program.gpu
                )
            else:
                ours(Path(program.data), "sst2", rows, folder, 0, methods={way: {}})
        taken = noted["end"] - noted["begin"]
        base = base or taken
        row = Row("SST-2, whole trainings of MiniLM", way, taken / base, ms=1e3 * taken)
        row.note = f"of all updates on {rows} rows"
        program.page.add(row)


def sections(program: Program, only: list[str], rows: list[str]) -> None:
    """All of them in the order of their importance, or those that were asked for in that order."""
    methods = {f"`{name}`": lambda name=name: acting(name) for name in METHODS}
    few = {f"`{name}`": lambda name=name: acting(name) for name in FEW}
    ways = {name: lambda loss=loss: loss for name, loss in PEERS.items()} | methods
    one_launch = {
        "plain, twice in two passes": lambda: twice(False),
        "plain, twice in one pass": lambda: twice(True),
    }
    base, mini = program.bert(12, 768), program.bert(6, 384)
    bf16 = torch.bfloat16

    def section(
        name: str, part: float, model: nn.Module, batch: dict, ways: dict, autocast=None
    ) -> Callable[[], None]:
        wanted = {row: ways[row] for row in (rows or ways) if row in ways}
        part = 1.0 if only else part
        return lambda: program.section(name, part, model, batch, wanted, autocast)

    def with_tf32() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        section(tf32, 0.25, base, program.batch(32, 128), ways | one_launch)()
        torch.set_float32_matmul_precision(before)

    def llama() -> None:
        section(lora, 0.15, program.llama(), program.batch(8, 256), few, bf16)()

    small, large = "Trainer, MiniLM's size, 16 x 128", "Trainer, BERT-base, 32 x 128"
    tf32 = "BERT-base, 32 x 128, float32 with TF32"
    half = "BERT-base, 32 x 128, bf16"
    lora = "Llama of 1.1 billion weights, LoRA, 8 x 256, bf16"
    mini32 = "MiniLM's size, 16 x 128, float32"
    every = {
        small: lambda: trainers(program, small, mini, 16, 128),
        large: lambda: trainers(program, large, base, 32, 128),
        tf32: with_tf32,
        half: section(half, 0.2, base, program.batch(32, 128), ways, bf16),
        lora: llama,
        "SST-2, whole trainings": lambda: whole_trainings(program) if program.data else None,
        mini32: section(mini32, 0.1, mini, program.batch(16, 128), few | one_launch),
    }
    for text in only or every:
        for name, take in every.items():
            if text in name and program.left() > (20 if only else 30):
                take()


def main() -> None:
    """Measure, and write also when time is up."""
    parser = argparse.ArgumentParser(description="Cost of a step on an accelerator.")
    parser.add_argument("--budget", type=float, default=220)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT")
    parser.add_argument("--methods", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu-cost")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    logging.getLogger("smoothtune").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    gpu = arguments.device == "cuda"
    name = torch.cuda.get_device_name() if gpu else "CPU, to show that the program works"
    title = f"{name}, torch {torch.__version__}, transformers {transformers.__version__}"
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    page = Page(arguments.output, title)

    def stop() -> None:
        time.sleep(max(1.0, arguments.budget - (time.perf_counter() - STARTED)))
        page.write("stopped by the budget")
        os._exit(0)

    threading.Thread(target=stop, daemon=True).start()
    rows = [f"`{name}`" if name in METHODS else name for name in arguments.methods]
    sections(Program(arguments, page), arguments.only, rows)
    page.write("complete")


if __name__ == "__main__":
    main()
