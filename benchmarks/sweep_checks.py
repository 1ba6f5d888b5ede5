"""What must hold for the objective on a class of transformers: right, refused, or wrong."""

import copy
import traceback
from contextlib import contextmanager
from pathlib import Path

import torch
from sweep_batches import candidates
from sweep_models import FIRST_WORD, make_model

import smoothtune
from smoothtune import METHODS, ForwardPass, Objective
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.hooks import width_at
from smoothtune.nn.model_facts import is_causal, is_causal_lm
from smoothtune.testing import (
    all_in_float64,
    fixed_draws,
    frozen_perturbations,
    with_weight,
)

PACKAGE = str(Path(smoothtune.__file__).parent)


ROUGH = 2e-4
"""Slopes of a loss with kinks, or computed in float32, differ by that at any step size."""


class Unmeasurable(Exception):
    """The model itself does not allow the check."""


class Rounded(Exception):
    """Right up to the order of a sum."""


def outcome(check, *args):
    """`right`, `refused: why` or `wrong: what happened`."""
    try:
        problem = check(*args)
    except Unmeasurable as reason:
        return f"not measured: {reason}"
    except Rounded:
        return "right to rounding"
    except TimeoutError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        last = traceback.extract_tb(error.__traceback__)[-1]
        raised = (last.line or "").startswith("raise")  # not by an operation of torch
        ours = raised and last.filename.startswith(PACKAGE)
        if ours and isinstance(error, ValueError | RuntimeError):
            return f"refused: {text}"
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"wrong: {type(error).__name__} in {where}: {text[:300]}"
    return "right" if not problem else f"wrong: {problem}"


def find_batch(model, cls, head, *, padded=True):
    """A batch on which the model's own forward gives a loss, and its name for errors."""
    errors = []
    for batch in candidates(cls, model.config, head, padded=padded):
        try:
            with torch.no_grad():
                loss = model(**batch)["loss"]
            if loss is not None and loss.numel() == 1 and torch.isfinite(loss).all():
                return batch
            errors.append(f"loss {loss}")
        except TimeoutError:
            raise
        except Exception as error:
            errors.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
    raise ValueError("; ".join(dict.fromkeys(errors))[:400])


@contextmanager
def attached(name, model, **fields):
    """An objective with one method, detached whatever happens."""
    objective = Objective(METHODS[name](**fields)).attach(model)
    try:
        yield objective
    finally:
        objective.detach()


def task_loss(model, batch):
    """The objective's task loss is the model's own."""
    with attached("cwgnc", model) as objective:
        torch.manual_seed(5)
        objective(model, batch)
    torch.manual_seed(5)
    with torch.no_grad():
        own = model(**batch)["loss"].item()
    found = objective.terms["loss/task"].item()
    if abs(found - own) > 1e-6 * max(1, abs(own)):
        return f"{found:.6f}, and the model's own is {own:.6f}"
    return None


def weight_zero(model, batch):
    """At weight 0 the gradients are bitwise those of plain training, dropout on."""
    found = []
    with torch.no_grad():
        model(**batch)  # some change in their first forward
    for plain in (True, True, False):
        model.zero_grad()
        torch.manual_seed(5)
        if plain:
            model(**batch)["loss"].backward()
        else:
            with attached("r3f", model, weight=0.0) as objective:
                objective(model, batch).backward()
        found.append(flat(model))
    if not torch.equal(found[0], found[1]):
        raise Unmeasurable("plain training is not repeatable: it seeds itself")
    if torch.equal(found[1], found[2]):
        return None
    error = relative(found[2], found[1])
    if error < 1e-6 and is_causal_lm(unwrap(model)):  # whose head sees the label tokens only
        raise Rounded
    return f"gradients differ by {error:.1e}"


def halves(model, batch):
    """The mean of the halves' gradients is the whole's, if it is for the model's own loss."""

    def own(rows):
        return model(**rows)["loss"]

    with attached("cwgnc", model) as objective:
        error = _error_of_halves(model, batch, lambda rows: objective(model, rows))
    if error < 1e-6:
        return None
    if (alone := _error_of_halves(model, batch, own)) > 1e-6:
        raise Unmeasurable(f"the model's own loss is no mean over rows ({alone:.0e})")
    return f"the gradient of the whole is {error:.1e} from the mean of its halves'"


def _error_of_halves(model, batch, loss):
    rows, found = count_rows(batch), []
    for part in (slice(None), slice(0, rows // 2), slice(rows // 2, None)):
        model.zero_grad()
        torch.manual_seed(5)
        loss(cut(batch, part, rows)).backward()
        found.append(flat(model))
    return relative((found[1] + found[2]) / 2, found[0])


def slope(method, model, batch):
    """The gradient of the objective is its slope along a random direction, in float64."""
    model = copy.deepcopy(model)
    objective = Objective(with_weight(METHODS[method]())).attach(model)
    recorded = []
    weights = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(5)
    direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in weights]
    direction = [d / d.norm().clamp(min=1e-12) for d in direction]
    untrained = {
        id(m.weight): m.padding_idx
        for m in model.modules()
        if isinstance(m, torch.nn.Embedding) and m.padding_idx is not None
    }
    for weight, d in zip(weights, direction, strict=True):
        if id(weight) in untrained:
            d[untrained[id(weight)]] = 0
    try:
        with frozen_perturbations(recorded, replay=False):
            torch.manual_seed(7)
            total = objective(model, batch)
            gradients = torch.autograd.grad(total, weights, allow_unused=True)
        pairs = zip(gradients, direction, strict=True)
        claimed = sum((g * d).sum().item() for g, d in pairs if g is not None)
        tried = []
        for h in (1e-6, 1e-5, 1e-7):
            values = []
            for sign in (1, -2, 1):
                with torch.no_grad():
                    for weight, d in zip(weights, direction, strict=True):
                        weight.add_(sign * h * d)
                if len(values) < 2:
                    with frozen_perturbations(recorded, replay=True):
                        torch.manual_seed(7)
                        values.append(objective(model, batch).item())
            tried.append((values[0] - values[1]) / (2 * h))
            if abs(tried[-1] - claimed) <= 1e-5 * abs(claimed) + 1e-7:
                return None
    finally:
        objective.detach()
    apart = min(abs(found - claimed) for found in tried) / max(abs(claimed), 1e-12)
    if apart < ROUGH:
        raise Unmeasurable(f"slopes agree to {apart:.0e} only: kinks, or float32 inside")
    return f"slope {tried[0]:.8g}, and the gradient says {claimed:.8g}"


def perturbation(model, batch):
    """A perturbed pass is the model run on inputs_embeds = E(x) + delta."""
    with torch.no_grad():
        with attached("r3f", model):  # or refused
            pass
        clean = ForwardPass(model, batch, points=("word",), hidden_states=False)
        shape = (*clean.input_ids.shape, width_at(unwrap(model), "word")[0])
        delta = torch.randn(shape, generator=torch.Generator().manual_seed(4)).double()
        torch.manual_seed(5)
        found = clean.at(delta)
        plain = clean.run().loss
        if found.loss is None or torch.equal(found.loss, plain):
            return "the perturbation changes nothing"
        words = model.get_input_embeddings()(clean.input_ids)
        others = {k: v for k, v in batch.items() if k != "input_ids"}
        for expected, embeds in ((plain, words), (found.loss, words + delta)):
            shaped = embeds.view(*batch["input_ids"].shape, -1)
            try:
                torch.manual_seed(5)
                own = model(**others, inputs_embeds=shaped)["loss"].item()
            except Exception as error:
                raise Unmeasurable(f"inputs_embeds: {type(error).__name__}") from error
            if abs(expected.item() - own) > 1e-6 * max(1, abs(own)):
                if embeds is words:
                    raise Unmeasurable("with inputs_embeds = E(x) its loss is another one")
                return f"perturbed loss {expected.item():.6f}, with inputs_embeds {own:.6f}"
    return None


def hidden_states(model, batch):
    """The recorded hidden states are the model's own, up to the norm after the last block."""
    with attached("lnsr", model):  # or refused
        pass
    with torch.no_grad():
        torch.manual_seed(5)
        found = ForwardPass(model, batch, points=()).run().hidden_states
        try:
            torch.manual_seed(5)
            inputs = {k: v for k, v in batch.items() if k not in ("labels",)}
            own = model(**inputs, output_hidden_states=True)["hidden_states"]
        except Exception as error:
            raise Unmeasurable(f"output_hidden_states: {type(error).__name__}") from error
    if own is None:
        raise Unmeasurable("no hidden states")
    if len(own) != len(found):
        return f"{len(found)} hidden states, and the model gives {len(own)}"
    if _same(found[1], own[0]):  # state-space models leave out the input of block 0
        own = (found[0], *own[:-1])
    for layer, (mine, given) in enumerate(zip(found[:-1], own[:-1], strict=True)):
        if not _same(mine, given):
            return f"hidden state {layer} is another one"
    return None


def _as_tensor(state):
    return state if isinstance(state, torch.Tensor) else state[0]


def _same(x, y):
    x, y = _as_tensor(x), _as_tensor(y)
    return x.shape == y.shape and relative(x, y) < 1e-6


def causality(model, batch):
    """Whether earlier positions see the last token, against what the library believes."""
    told = is_causal(unwrap(model))
    others = {k: v for k, v in batch.items() if "pixel" in k or k == "bbox"}
    model = copy.deepcopy(model).eval()

    def states(changed):
        ids = batch["input_ids"].clone()
        if changed is not None:
            ids[..., changed] = FIRST_WORD + 1 + (ids[..., changed] == FIRST_WORD + 1).long()
        with torch.no_grad():
            out = model(**others | {"input_ids": ids}, output_hidden_states=True)
        return _as_tensor(out["hidden_states"][-1])

    try:
        whole, first, last = states(None), states(0), states(-1)
    except TimeoutError:
        raise
    except Exception as error:
        raise Unmeasurable(f"{type(error).__name__}") from error
    if whole.shape[1] != batch["input_ids"].shape[-1]:
        raise Unmeasurable("states of another length")
    if _same(first[:, 1:], whole[:, 1:]):
        raise Unmeasurable("no token sees another one")
    if (measured := _same(last[:, :-1], whole[:, :-1])) != told:
        names = ("bidirectional", "causal")
        return f"taken for {names[told]}, measured to be {names[measured]}"
    return None


def check_class(cls, head, methods, done=(), *, whole=True):
    """Results for one class, by the name of the check or of the method.

    Args:
        cls: the class.
        head: its automatic class, as in `MODEL_FOR_<head>_MAPPING_NAMES`.
        methods: names of the methods whose gradients are compared with slopes.
        done: checks that are not repeated.
        whole: also what is the same for all heads of a backbone.

    Raises:
        ValueError: no batch was found that the model itself gives a loss for.
    """
    model = make_model(cls, head)
    batch = find_batch(model, cls, head)
    _runs_by_itself(model, batch)
    results = {}
    if "task loss" not in done:
        results["task loss"] = outcome(task_loss, model, batch)
        results["weight 0"] = outcome(weight_zero, with_dropout(cls, head), batch)
    with all_in_float64():
        model, batch = model.double(), in_float64(batch)
        try:
            _runs_by_itself(model, batch)
        except ValueError as error:
            reason = f"not measured: in float64, {error}"
            return results | {name: reason for name in ("halves", *methods)}
        if "task loss" not in done:
            results["halves"] = outcome(halves, model, batch)
        text = "input_ids" in batch and not getattr(model.config, "is_encoder_decoder", False)
        if text and whole and "causality" not in done:
            unpadded = in_float64(find_batch(model, cls, head, padded=False))
            results["causality"] = outcome(causality, model, batch)
            results["perturbation"] = outcome(perturbation, model, unpadded)
            results["hidden states"] = outcome(hidden_states, model, batch)
        rows = count_rows(batch)
        with fixed_draws():
            results |= _methods(model, cut(batch, slice(0, rows // 2), rows), methods)
    return results


def _methods(model, batch, names):
    plain = outcome(slope, "plain", model, batch)
    if plain != "right":  # as in models that round, or that cut their graph
        return {name: f"not measured: plain training is {plain}" for name in names}
    return {name: outcome(slope, name, model, batch) for name in names}


def _runs_by_itself(model, batch):
    """Raises unless the model alone computes the same loss twice, and its gradient."""
    losses = []
    for _ in range(2):
        torch.manual_seed(5)
        try:
            losses.append(model(**batch)["loss"])
            losses[-1].backward()
        except TimeoutError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:120]
            raise ValueError(f"the model itself raises {type(error).__name__}: {text}") from error
    if not torch.equal(*losses):
        raise ValueError("the model's own loss is another one every time")


def with_dropout(cls, head):
    """The model with dropout, unless the class refuses it."""
    try:
        return make_model(cls, head, dropout=0.1)
    except ValueError:
        return make_model(cls, head)


def count_rows(batch):
    """Number of rows of a batch."""
    return len(next(value for value in batch.values() if isinstance(value, torch.Tensor)))


def cut(batch, part, rows):
    """Some rows of a batch."""
    return {
        k: v[part] if isinstance(v, torch.Tensor) and v.ndim and len(v) == rows else v
        for k, v in batch.items()
    }


def in_float64(batch):
    """A batch whose fractions are float64."""
    return {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in batch.items()
    }


def flat(model):
    """All gradients in one vector."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten().clone()
            for p in model.parameters()
        ]
    )


def relative(x, y):
    """Distance of two tensors relative to the second's norm."""
    return ((x - y).norm() / y.norm().clamp(min=1e-30)).item()
