"""Problems that several tests of operator sharding use."""

from dataclasses import replace

from shardwright.models.catalog import load_model
from shardwright.models.transformer import build_graph
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.operators.assembly import assemble, folded, folded_model, unfolded
from shardwright.planner.search.operators.context import context_of, links_of
from shardwright.planner.search.operators.mesh import parse_mesh
from shardwright.planner.search.operators.options import ShardOptions
from shardwright.planner.search.operators.sharding import pricing_of
from shardwright.planner.search.operators.solver import solve
from shardwright.planner.search.operators.targets import variants_of


def llama(**changes):
    """The 8B Llama with some of its sizes changed."""
    return build_graph(replace(load_model("llama3.1-8b").spec, **changes))


def problem_of(model, cluster, *, seq_len, batch, framework="pytorch", overrides=()):
    options = PricingOptions(framework=framework, overrides=tuple(overrides))
    return build_problem(model, cluster, seq_len=seq_len, global_batch=batch, options=options)


class Case:
    """A solved program: of one layer that stands for all of the model's, or of the whole model."""

    def __init__(self, problem, mesh, *, budget=None, copies=None, whole=False, **options):
        self.options = ShardOptions(mesh=parse_mesh(mesh), **options)
        links = links_of(problem, self.options)
        (variant,) = variants_of(problem.framework, self.options)[:1]
        layer = problem.graph.layer_kinds[0]
        sections = folded_model(problem.graph) if whole else unfolded(layer, copies) if copies else folded(layer, 32.0)
        self.assembly = assemble(*sections, context_of(problem, links, self.options, variant))
        self.program = self.assembly.program(pricing_of(problem, self.options, budget))
        self.solution = solve(self.program)

    @property
    def memory_bytes(self):
        return self.program.memory_bytes(self.solution.choice)

    def divides(self, name, section=None):
        """What an operator divides on each axis, `-` for nothing."""
        at = self._at(name, section)
        table = self.assembly.tables[at]
        return table.strategies.words(int(table.strategy[self.solution.choice[at]]))

    def reads(self, name, place):
        """Codes of an input by axis."""
        at = self._at(name, None)
        return self.assembly.tables[at].read(place)[self.solution.choice[at]].tolist()

    def writes(self, name, place=0):
        at = self._at(name, None)
        return self.assembly.tables[at].written(place)[self.solution.choice[at]].tolist()

    def held(self, name):
        at = self._at(name, None)
        return self.assembly.tables[at].levels[self.solution.choice[at]].tolist()

    def names(self):
        return [table.name for table in self.assembly.tables]

    def _at(self, name, section):
        places = zip(self.assembly.tables, self.assembly.section, strict=True)
        return next(i for i, (t, s) in enumerate(places) if t.name == name and section in {None, s})
