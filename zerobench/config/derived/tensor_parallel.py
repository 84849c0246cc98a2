"""Models that tensor parallelism can cut, and reasons why others cannot be.

Attention is cut by heads and the MLP by its inner width, as in Megatron-LM (Shoeybi et al., arXiv 1909.08053, section
3), so both must be divisible. A vocabulary need not be: the last rank's part of the head is then the smallest.
"""

from zerobench.config.models.architecture import complete, dimensions
from zerobench.config.trial.trial import TrialSpec

MODEL_TYPES = ("llama", "mistral", "qwen2")
"""Models with Llama's blocks: separate projections of queries, keys and values, and a gated MLP."""

_WHY_NOT = {
    "gpt2": "one projection makes queries, keys and values together, which a cut by columns does not cut by heads",
    "gpt_neox": "one projection makes queries, keys and values together, which a cut by columns does not cut by heads",
    "qwen3": "query and key norms would get gradients from each rank's own heads only",
}


def tensor_parallel_refusal(trial: TrialSpec, parts: int) -> str | None:
    """Reason why the trial's model cannot be cut into `parts`; None if it can."""
    model = trial.model
    if model.model_type not in MODEL_TYPES:
        because = _WHY_NOT.get(model.model_type, "only Llama's block names are known")
        return f"a model of type {model.model_type}: {because}; use one of type {', '.join(MODEL_TYPES)}"
    if complete(model).get("tie_word_embeddings"):
        return "tie_word_embeddings true: the head is split by rows, the embedding by columns; set it to false"
    size = dimensions(model)
    for name, value in (
        ("attention heads", size.num_heads),
        ("key and value heads", size.num_kv_heads),
        ("columns of the MLP (intermediate_size)", size.intermediate_size),
        ("columns of the embedding (hidden_size)", size.hidden_size),
    ):
        if value is not None and value % parts:
            return f"{value} {name} cannot be divided among {parts} ranks"
    return None
