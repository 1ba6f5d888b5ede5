"""The averaged model against its recursion."""

import pytest
import torch

from smoothtune import SMART, ForwardPass, Objective
from smoothtune.functional.ema_teacher import Teacher
from smoothtune.nn.dropout import SharedMasks
from smoothtune.testing import tiny_batch, tiny_model


def moved(model, seed):
    """Move the weights that train; their new values by name."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(0.1 * noise)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def student():
    model = tiny_model("bert", dropout=0.2)
    model.bert.embeddings.requires_grad_(False)
    return model


def test_average():
    model = student()
    w0 = {name: p.detach().clone() for name, p in model.named_parameters()}
    teacher = Teacher(model)
    w1 = moved(model, 1)
    teacher.update(0.9)
    w2 = moved(model, 2)
    teacher.update(0.6)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(teacher.state_dict()) == trained
    for name, average in teacher.state_dict().items():
        expected = 0.6 * (0.9 * w0[name] + 0.1 * w1[name]) + 0.4 * w2[name]
        torch.testing.assert_close(average, expected)
        assert torch.equal(average, dict(teacher.model.named_parameters())[name])


def test_only_what_trains_is_copied():
    model = student()
    teacher = Teacher(model)
    for own, copied in zip(model.parameters(), teacher.model.parameters(), strict=True):
        assert (own is copied) == (not own.requires_grad)
        assert not copied.requires_grad
    assert model.classifier.weight.requires_grad


@pytest.mark.parametrize("num_labels", [2, 3])
def test_several_labels_that_the_first_batch_declares_are_those_of_the_teacher_too(num_labels):
    """A batch without labels says nothing: the term is the one of a model that said it before."""
    batch = tiny_batch()
    labels = torch.randint(2, (4, num_labels), generator=torch.Generator().manual_seed(0)).double()
    terms = []
    for declared in (None, "multi_label_classification"):
        model = tiny_model("bert", num_labels=num_labels)
        model.config.problem_type = declared
        objective = Objective(SMART(lambda_s=0, weight=1.0, batches="unlabeled")).attach(model)
        objective(model, batch | {"labels": labels})
        moved(model, 1)
        objective(model, batch | {"unlabeled": True, "labels": None})
        objective.detach()
        terms.append(objective.terms["loss/smart"])
    assert terms[1] > 1e-5
    assert torch.equal(*terms)


def test_state_round_trip():
    model = student()
    teacher = Teacher(model)
    moved(model, 1)
    teacher.update(0.5)
    other = Teacher(student())
    other.load_state_dict({name: value.clone() for name, value in teacher.state_dict().items()})
    for a, b in zip(teacher.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_predictions_are_those_of_the_averaged_weights():
    model, batch = student(), tiny_batch()
    teacher = Teacher(model)
    expected = {name: p.clone() for name, p in teacher.model.state_dict().items()}
    moved(model, 1)
    clean = ForwardPass(model, batch).run()
    found = teacher.run(clean, "off").logits
    reference = tiny_model("bert").eval()
    reference.load_state_dict(expected)
    torch.testing.assert_close(found, reference(**batch).logits)
    assert not found.requires_grad
    assert teacher.model.training


def test_dropout_of_the_teacher():
    """With equal weights and shared masks it predicts what the student does."""
    model, batch = student(), tiny_batch()
    teacher = Teacher(model)
    start = (torch.get_rng_state(), None)
    clean = ForwardPass(model, batch, start=start, shared_masks=SharedMasks()).run()
    assert torch.equal(teacher.run(clean, "shared").logits, clean.logits)
    assert not torch.allclose(teacher.run(clean, "off").logits, clean.logits)
    torch.manual_seed(5)
    first, second = (teacher.run(clean, "independent").logits for _ in range(2))
    assert not torch.allclose(first, clean.logits)
    assert not torch.allclose(first, second)


def test_every_module_is_in_the_mode_of_the_students():
    model = student()
    teacher = Teacher(model)
    model.bert.encoder.layer[1].eval()
    clean = ForwardPass(model, tiny_batch()).run()
    teacher.run(clean, "shared")
    modes = [module.training for module in teacher.model.modules()]
    assert modes == [module.training for module in model.modules()]
    assert not all(modes)
    assert any(modes)


def test_state_with_weights_that_this_run_still_freezes():
    """The first run unfroze them; the teacher of a resumed one has their average all the same."""
    model, batch = student(), tiny_batch()
    teacher = Teacher(model)
    embeddings = model.bert.embeddings.requires_grad_(True)
    clean = ForwardPass(model, batch).run()
    teacher.run(clean, "off")
    moved(model, 1)
    teacher.update(0.5)
    state = {name: value.clone() for name, value in teacher.state_dict().items()}
    name = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(state[name], embeddings.word_embeddings.weight)

    resumed = student()
    before = resumed.bert.embeddings.word_embeddings.weight.clone()
    other = Teacher(resumed)
    other.load_state_dict(state)
    assert other.state_dict().keys() == state.keys()
    for key, weight in other.model.named_parameters():
        assert torch.equal(weight, state[key]), key
    assert torch.equal(resumed.bert.embeddings.word_embeddings.weight, before)
