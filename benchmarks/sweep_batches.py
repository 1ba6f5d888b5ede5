"""Made-up batches: what a class of transformers takes, by its signature and its head."""

import inspect

import torch
from sweep_models import FIRST_WORD, IGNORED, VOCABULARY

ROWS, TOKENS, FRAMES = 4, 5, 64
LENGTHS = [5, 4, 5, 4]  # of the rows; both halves of the batch have as many labels
ONE_LABEL = (
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "AUDIO_XVECTOR",
    "VIDEO_CLASSIFICATION",
    "TIME_SERIES_CLASSIFICATION",
    "NEXT_SENTENCE_PREDICTION",
    "MULTIPLE_CHOICE",
)


def candidates(cls, config, head, *, padded=True):
    """Batches that the class may take, the simplest first."""
    takes = inspect.signature(cls.forward).parameters
    text = _text(config, head, padded) if "input_ids" in takes else {}
    others = [{}]
    if "pixel_values" in takes or "pixel_values_videos" in takes:
        others = _images(config, takes) if not text else [{}, *_images(config, takes)]
    elif sound := [n for n in ("input_values", "input_features", "audio_values") if n in takes]:
        others = _sounds(config, sound[0])
    for other in others:
        batch = {k: v for k, v in {**text, **other}.items() if k in takes}
        if "bbox" in takes and "input_ids" in batch:
            batch["bbox"] = torch.tensor([1, 2, 5, 9]).expand(ROWS, TOKENS, 4).clone()
        rows = ROWS
        for labels in _labels(config, head, takes, batch, rows):
            yield batch | labels
            if "decoder_input_ids" in takes:
                given = labels.get("labels", batch.get("input_ids"))
                if given is not None and given.ndim == 2:
                    yield batch | labels | {"decoder_input_ids": given.clamp(min=0)}


def _text(config, head, padded):
    generator = torch.Generator().manual_seed(1)
    rows = 2 * ROWS if head == "MULTIPLE_CHOICE" else ROWS
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    words = min(getattr(text_config, "vocab_size", None) or VOCABULARY, VOCABULARY)
    pad = getattr(text_config, "pad_token_id", None) or 0
    eos = getattr(text_config, "eos_token_id", None)
    eos = eos if isinstance(eos, int) and eos < words else FIRST_WORD
    ids = torch.randint(FIRST_WORD + 1, words, (rows, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        length = LENGTHS[row % ROWS] if padded else TOKENS
        ids[row, length - 1] = eos
        ids[row, length:], mask[row, length:] = pad, 0
    if head == "MULTIPLE_CHOICE":
        ids, mask = ids.view(ROWS, 2, TOKENS), mask.view(ROWS, 2, TOKENS)
    return {"input_ids": ids, "attention_mask": mask}


def _images(config, takes):
    vision = getattr(config, "vision_config", None) or config
    side = getattr(vision, "image_size", None) or getattr(config, "image_size", None) or 64
    sides = list(side) if isinstance(side, (list, tuple)) else [side, side]
    channels = getattr(vision, "num_channels", None) or 3
    name = "pixel_values" if "pixel_values" in takes else "pixel_values_videos"
    frames = getattr(vision, "num_frames", None)
    generator = torch.Generator().manual_seed(2)
    shapes = [(ROWS, channels, *sides), (ROWS, 1, channels, *sides)]
    if isinstance(frames, int):
        shapes.insert(0, (ROWS, frames, channels, *sides))
    return [{name: torch.randn(shape, generator=generator)} for shape in shapes]


def _sounds(config, name):
    audio = getattr(config, "audio_config", None) or getattr(config, "encoder_config", None)
    generator = torch.Generator().manual_seed(2)
    found = []
    for part in (config, audio):
        bins = getattr(part, "num_mel_bins", None) or getattr(part, "feature_size", None)
        bins = bins or getattr(part, "input_feat_per_channel", None)
        if isinstance(bins, int):
            frames = 2 * getattr(part, "max_source_positions", FRAMES // 2)
            frames = getattr(part, "max_length", None) or frames
            found += [
                torch.randn(ROWS, bins, frames, generator=generator),
                torch.randn(ROWS, frames, bins, generator=generator),
            ]
    found += [torch.randn(ROWS, 2000, generator=generator)]
    return [{name: values} for values in found]


def _labels(config, head, takes, batch, rows):
    generator = torch.Generator().manual_seed(3)
    classes = max(2, min(getattr(config, "num_labels", 2) or 2, 3))
    one = torch.randint(0, classes, (rows,), generator=generator)
    if head == "NEXT_SENTENCE_PREDICTION":
        one = one % 2
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    words = (
        None if ids is None else ids.masked_fill(mask == 0, IGNORED) if mask is not None else ids
    )
    if "start_positions" in takes:
        yield {
            "start_positions": torch.tensor([0, 1, 2, 1])[:rows],
            "end_positions": torch.tensor([1, 3, 3, 2])[:rows],
        }
    if head == "MULTIPLE_CHOICE":
        yield {"labels": one % 2}
        return
    extra = {
        name: one % 2 for name in ("next_sentence_label", "sentence_order_label") if name in takes
    }
    if "return_loss" in takes:
        extra["return_loss"] = True
    if "labels" in takes:
        if head in ONE_LABEL:
            yield {"labels": one}
        elif head == "TOKEN_CLASSIFICATION":
            of_tokens = torch.randint(0, classes, words.shape, generator=generator)
            yield {"labels": of_tokens.masked_fill(words == IGNORED, IGNORED)}
        elif head == "CTC":
            yield {"labels": torch.randint(3, 20, (rows, 3), generator=generator)}
        elif words is not None:
            yield {"labels": words} | extra
        yield {"labels": torch.randint(5, 20, (rows, TOKENS), generator=generator)} | extra
        yield {"labels": one} | extra
    yield extra
