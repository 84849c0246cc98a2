"""fp32 master weights of a 16-bit model, as in the ZeRO paper's mixed-precision Adam (section 3.1)."""

from collections.abc import Iterable, Sequence

import torch


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Existing gradients of `parameters`."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@torch.no_grad()
def unscale(parameters: Iterable[torch.Tensor], scale: float) -> None:
    """Divide the gradients by the loss scale."""
    if scale != 1:
        for gradient in gradients_of(parameters):
            gradient.div_(scale)


class MasterWeights:
    """fp32 copies of 16-bit parameters; the optimizer updates the copies."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self.masters = [p.detach().clone().float().requires_grad_() for p in parameters]

    def take_gradients(self, scale: float, *, keep: bool = False) -> None:
        """Move the gradients to the masters in fp32, divided by the loss scale; the 16-bit ones are freed.

        With `keep` they are set to zero instead: DDP's are views of its buckets.
        """
        for parameter, master in zip(self._parameters, self.masters, strict=True):
            if parameter.grad is not None:
                master.grad = parameter.grad.float().div_(scale)
                parameter.grad = parameter.grad.zero_() if keep else None

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the updated masters back into the model."""
        for parameter, master in zip(self._parameters, self.masters, strict=True):
            parameter.copy_(master)
