"""What a replay says of one recorded case."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Verdict:
    """Differences (a failure if there are any) and the rules by which the case differs on purpose."""

    name: str
    differences: list[str] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)

    @property
    def passed(self) -> bool:
        return not self.differences

    def same(self, what: str, ours: object, recorded: object) -> bool:
        """Notes a difference where the two are not equal."""
        if ours == recorded:
            return True
        self.differences.append(f"{what}: recorded {recorded!r}, ours {ours!r}")
        return False

    def holds(self, what: str, fact: bool) -> None:
        """Notes a difference where a property that must hold does not."""
        if not fact:
            self.differences.append(f"{what} does not hold")
