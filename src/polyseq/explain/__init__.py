"""Looking at steps 1 to 4 without a model: a batch, the settings of a context, and what they make of each other.

Enters: rows and a `PlanSpec`. Leaves: a `Simulation` and views of it: `Ways`, `Lane`, drawings, comparisons. Stands
above `memory` and reads it; needs no weights and no backend.
"""

from polyseq.explain.compare import Candidate, compare
from polyseq.explain.lanes import Lane, lanes
from polyseq.explain.simulation import Simulation, simulate
from polyseq.explain.spec import PlanSpec
from polyseq.explain.ways import WayRun, Ways, ways

__all__ = ["Candidate", "Lane", "PlanSpec", "Simulation", "WayRun", "Ways", "compare", "lanes", "simulate", "ways"]
