"""Exact match and F1 of extractive question answering, as in the scripts of SQuAD 1.1 and 2.0.

Reference: Rajpurkar, Zhang, Lopyrev, Liang, EMNLP 2016; Rajpurkar, Jia, Liang, ACL 2018.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and repeated spaces.

    >>> normalize_answer(" The  U.S. Army's")
    'us armys'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 if both are the same after `normalize_answer`, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """F1 of the bags of normalized words, 0 to 1.

    Where one of them has no words, as "no answer" or the answer "the", it is 1 if both have none,
    else 0, as in the script of SQuAD 2.0; that of 1.1, where no answer is empty, gives 0 for both.
    """
    predicted, gold = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not predicted or not gold:
        return float(predicted == gold)
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))


def best_scores(prediction: str, accepted: Sequence[str]) -> tuple[float, float]:
    """The best `exact_match` and the best `token_f1` over a question's accepted answers."""
    gold = [text for text in accepted if normalize_answer(text)] or [""]
    return (
        max(exact_match(prediction, text) for text in gold),
        max(token_f1(prediction, text) for text in gold),
    )


def squad_metrics(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Mean over questions of the best score over each question's answers.

    Args:
        predictions: text by question id; "" is no answer.
        answers: accepted texts by question id; a question without any has the answer "". Answers
            without words are left out where there are others, as the script of SQuAD 2.0 does.

    Returns:
        `exact_match` and `f1`, 0 to 100.

    Raises:
        ValueError: there are no questions, or a question has no prediction.
    """
    if not answers:
        raise ValueError("there are no questions to score")
    if missing := [question for question in answers if question not in predictions]:
        raise ValueError(
            f"{len(missing)} of {len(answers)} questions have no prediction, the first is "
            f"{missing[0]!r}; predict '' where there is no answer"
        )
    exact = f1 = 0.0
    for question, accepted in answers.items():
        scores = best_scores(predictions[question], accepted)
        exact, f1 = exact + scores[0], f1 + scores[1]
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * f1 / len(answers)}
