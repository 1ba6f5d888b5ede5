"""`torch_compile` in a Trainer: its blocks are compiled, for the time of the training."""

import pytest
import torch
from accelerate.utils import DynamoBackend
from safetensors.torch import load_file

from helpers.training import COMPILED, Rows, arguments, weights_after
from smoothtune import LNSR, SmoothTrainer
from smoothtune.nn.environments import environments
from smoothtune.testing import tiny_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    # what inductor imports
    pytest.mark.filterwarnings("ignore:.*script_method. is deprecated:DeprecationWarning"),
]
CHECKPOINTS = {"save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 8}


@pytest.fixture(autouse=True)
def graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("method", ["lnsr", pytest.param("freelb", marks=pytest.mark.slow)])
def test_weights_are_those_of_a_trainer_that_compiles_nothing(method, tmp_path):
    expected = weights_after(tmp_path, method, max_steps=2)
    found = weights_after(tmp_path, method, **COMPILED)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-9, msg=name)


def test_blocks_alone_are_compiled_saved_and_resumed(tmp_path):
    """Checkpoints have the model's own names, and a resumed run ends at the same weights."""

    def trainer():
        return SmoothTrainer(
            model=tiny_model("bert", dropout=0.1),
            args=arguments(tmp_path, **COMPILED | CHECKPOINTS, eval_strategy="steps", eval_steps=1),
            train_dataset=Rows(32),
            eval_dataset=[Rows(2)[i] | {"example_id": torch.tensor(0)} for i in range(2)],
            regularizers=[LNSR(weight=1.0)],
        )

    first = trainer()
    seen = []
    wrapped = first.compute_loss

    def compute_loss(model, *args, **kwargs):
        seen.append((type(model).__name__, environments(model)))
        return wrapped(model, *args, **kwargs)

    first.compute_loss = compute_loss
    first.train()
    assert seen[0] == ("BertForSequenceClassification", {"compiled blocks"})
    assert environments(first.model) == set()
    assert first.accelerator.state.dynamo_plugin.backend == DynamoBackend.AOT_EAGER  # as it was
    saved = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    assert saved.keys() == tiny_model("bert").state_dict().keys()
    second = trainer()
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    for name, weight in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], weight), name
