"""Looking at steps 1 to 4 without a model: a batch, the settings of a context, and what they make of each other.

Enters: rows and a `PlanSpec`. Leaves: a `Simulation` (`simulation.simulate`) and views of it: `Ways`, `Lane`, drawings,
comparisons. Stands above `memory` and reads it; needs no weights and no backend. Its modules are asked for one by one:
what says how a context is set needs no drawings.
"""
