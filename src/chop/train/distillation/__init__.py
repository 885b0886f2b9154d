"""Knowledge distillation: training against the outputs of a teacher.

The loss is `(1 - alpha) task + alpha soft`, where `soft` compares outputs with the teacher's: for
classes T^2 KL(teacher || student) at temperature T, for numbers the mean squared difference, see
`chop.train.distillation.soft_losses`. Optionally, layers of equal names are compared as well.

Source: Hinton, Vinyals and Dean 2015, arXiv:1503.02531.
"""

__all__: list[str] = []
