"""Regularize TRL's SFTTrainer: a decoder with LoRA, loss on the completions, packed batches."""

import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from smoothtune import LNSR, R3F, regularize

torch.manual_seed(0)

# A tiny random model and made-up texts, so that this runs anywhere in seconds. In their place:
# model="Qwen/Qwen3-0.6B", no `processing_class`, and your prompts and completions.
words = ["<|pad|>", "<|end|>", "the", "film", "plot", "was", "very", "good", "bad", "yes", "no"]
vocabulary = {word: index for index, word in enumerate(words)}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|end|>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
)
data = Dataset.from_list(
    [
        {
            "prompt": f"the {'plot' if i % 3 else 'film'} was {'very ' * (i % 4)}{mood}",
            "completion": " yes" if mood == "good" else " no",
        }
        for i in range(64)
        for mood in ("good", "bad")
    ]
)

with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            folder,
            num_train_epochs=3,
            learning_rate=1e-2,
            per_device_train_batch_size=4,
            max_length=32,
            packing=True,  # documents are taken apart again, so that they stay separate examples
            gradient_checkpointing=False,
            bf16=False,
            logging_steps=4,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"]),
    )

    trainer = regularize(trainer, LNSR(noise_ratio=0.1), R3F(sigma=1e-3))  # the changed line

    trainer.train()  # logs loss, loss/task, loss/lnsr, loss/r3f and lnsr/delta_ratio
