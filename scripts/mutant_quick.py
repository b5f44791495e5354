"""A plugin of pytest: laws are tried without a limit of time for an example, and what fails is not made smaller."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), deadline=None)
settings.load_profile("mutants")
