"""A method of your own, held to the contract that all methods of the package keep."""

from torch import Tensor

from smoothtune import ForwardPass, Objective, Penalty, Traits, method
from smoothtune.core.regularizer import Positive
from smoothtune.nn import rng
from smoothtune.testing import CLAUSES, tiny_batch, tiny_model


@method("stable_scores", Traits(points=("word",)))  # where the perturbation enters
class StableScores(Penalty):
    """Scores must move little when every feature of the embeddings does."""

    sigma: Positive = 0.1
    """Largest relative change of a feature."""

    def loss(self, clean: ForwardPass) -> Tensor:
        """E ||f(x + delta) - f(x)||^2, a mean over examples."""
        x = clean.run().embeddings()
        draws = rng.uniform_like(x)  # in [-1, 1], from the method's own generator
        delta = self.sigma * x * draws * clean.mask[..., None]
        moved = clean.at(delta, dropout="shared")
        return (moved.logits - clean.logits).square().sum(-1).mean()


if __name__ == "__main__":
    model = tiny_model("bert")
    objective = Objective(StableScores(weight=0.5)).attach(model)
    objective(model, tiny_batch()).backward()
    print({name: f"{value:.2g}" for name, value in objective.terms.items()})
    objective.detach()

    # In a test file this is a pytest.mark.parametrize over CLAUSES and all ARCHITECTURES.
    for architecture in ("bert", "llama"):
        for clause in CLAUSES:
            clause(StableScores, architecture)
            print(f"{architecture}: {clause.__name__}")
