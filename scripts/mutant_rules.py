"""Rules that were changed on purpose, each with the tests that have to notice.

Promises are those of docs/invariants.md; each has at least three changes here. `judgements` are those of the
experiments: what turns measurements into claims. A change whose text is not found any more is reported as stale: look
whether the rule has moved, and move the change with it.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RULES", "Rule"]


class Rule(NamedTuple):
    """One change: in this file this text, which is there once, becomes that, and these tests have to fail."""

    promise: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _rule(promise: str, name: str, file: str, old: str, new: str, *tests: str) -> Rule:
    return Rule(promise, name, f"src/dovetail/{file}", old, new, tests)


_PLANNER = "tests/plan/test_planner_rules.py"
_CHANCE = "tests/plan/test_chance_rules.py"
_CONTROL = "tests/control/test_rules.py"
_QUEUE = "tests/state/test_queue.py"

RULES: tuple[Rule, ...] = (
    # -- 1. one outcome ---------------------------------------------------------------------------------------------
    _rule("1 outcome", "one attempt more", "control/controller.py", "MAX_ATTEMPTS = 3", "MAX_ATTEMPTS = 4", _CONTROL),
    _rule(
        "1 outcome",
        "a batch's window ends with its first deadline",
        "control/launch.py",
        "            if deadline > latest:",
        "            if not latest or deadline < latest:",
        _CONTROL,
    ),
    _rule(
        "1 outcome",
        "what ran on a lost worker is not tried again",
        "control/controller.py",
        '                self._retry(batch, f"worker {worker.spec.name} was lost: {event.detail}", "worker_lost")',
        "                pass",
        _CONTROL,
    ),
    _rule(
        "1 outcome",
        "a request that has ended still waits in its queues",
        "control/controller.py",
        "                queue.forget(request)",
        "                pass",
        "tests/golden/test_actions.py",
    ),
    _rule(
        "1 outcome",
        "the queue forgets a request twice",
        "state/queue.py",
        "self.size -= request.waiting.pop(self, 0)",
        "self.size -= request.waiting.get(self, 0)",
        _QUEUE,
    ),
    _rule(
        "1 outcome",
        "a loner shares its batch",
        "state/queue.py",
        "                count = 1",
        "                count = count",
        _QUEUE,
    ),
    _rule(
        "1 outcome",
        "a loner joins a batch that has begun",
        "state/queue.py",
        "                if taken:\n                    break",
        "                if taken:\n                    pass",
        _QUEUE,
    ),
    _rule(
        "1 outcome",
        "equals in a queue come last first",
        "state/queue.py",
        "heappush(self._heap, (order, self._sequence, item))",
        "heappush(self._heap, (order, -self._sequence, item))",
        _QUEUE,
    ),
    _rule(
        "1 outcome",
        "an answer at its objective is late",
        "control/controller.py",
        "late = self._step.now_ns > request.objective_ns",
        "late = self._step.now_ns >= request.objective_ns",
        _CONTROL,
    ),
    # -- 2. shares --------------------------------------------------------------------------------------------------
    _rule(
        "2 shares",
        "a batch takes nothing of its worker",
        "control/launch.py",
        "        worker.free_pct -= config.share_pct\n",
        "",
        "tests/golden/test_actions.py",
        "tests/laws/test_laws.py",
    ),
    _rule(
        "2 shares",
        "a batch gives more back than it took",
        "control/launch.py",
        "            worker.free_pct += batch.config.share_pct",
        "            worker.free_pct += 2 * batch.config.share_pct",
        "tests/laws/test_laws.py",
    ),
    _rule(
        "2 shares",
        "first fit looks at cores only",
        "schedule/first_come.py",
        "if worker.free_pct >= share and worker.free_cpus >= config.cpus:",
        "if worker.free_cpus >= config.cpus:",
        "tests/laws/test_laws.py",
    ),
    # -- 3. memory --------------------------------------------------------------------------------------------------
    _rule(
        "3 memory",
        "a model in use is evicted by the controller",
        "control/roster.py",
        "if name in worker.resident and not in_use:",
        "if name in worker.resident:",
        _CONTROL,
    ),
    _rule(
        "3 memory",
        "the controller loads beyond memory",
        "control/roster.py",
        "if room and stage.kind in worker.spec.runs",
        "if stage.kind in worker.spec.runs",
        _CONTROL,
    ),
    _rule(
        "3 memory",
        "a model on its way takes no memory",
        "control/roster.py",
        "        worker.resident_bytes += stage.weights_bytes\n",
        "",
        _CONTROL,
        "tests/laws/test_laws.py",
    ),
    _rule(
        "3 memory",
        "a load that failed keeps its bytes",
        "control/roster.py",
        "            worker.resident_bytes -= worker.loading.pop(event.stage)",
        "            worker.loading.pop(event.stage)",
        _CONTROL,
    ),
    # -- 4. work conservation ---------------------------------------------------------------------------------------
    _rule(
        "4 work",
        "queues are not asked when room has come free",
        "control/launch.py",
        "        self.freed = True\n        return batch",
        "        return batch",
        "tests/golden/test_actions.py",
    ),
    _rule(
        "4 work",
        "a restless planner is asked once",
        "control/launch.py",
        "        if self._restless and self._last_batch != before:\n            self._start_rest()\n",
        "",
        "tests/golden/test_conserving.py",
    ),
    _rule(
        "4 work",
        "a hold has no end",
        "control/launch.py",
        "                self._step.set_timer(choice.until_ns, queue.key, choice.reason)",
        "                pass",
        "tests/golden/test_conserving.py",
    ),
    # -- 5. determinism ---------------------------------------------------------------------------------------------
    _rule(
        "5 same again",
        "ties between queues go by memory address",
        "control/launch.py",
        "candidates = [(queue.head_order(), position, queue) for position, queue in enumerate(queues)]",
        "candidates = [(queue.head_order(), -position, queue) for position, queue in enumerate(queues)]",
        "tests/control/test_rules.py",
    ),
    _rule(
        "5 same again",
        "a quantile's rank is one less",
        "record/ledger.py",
        "wanted = max(1, -(-int(q * 1_000_000) * self.count // 1_000_000))",
        "wanted = max(1, -(-int(q * 1_000_000) * self.count // 1_000_000) - 1)",
        "tests/record/test_ranks.py",
    ),
    _rule(
        "5 same again",
        "a kernel quantile's rank is that of the next bucket",
        "profile/kernels.py",
        "if seen + here >= wanted:",
        "if seen + here > wanted:",
        "tests/profile/test_spread_ranks.py",
    ),
    # -- 6. early refusal -------------------------------------------------------------------------------------------
    _rule(
        "6 refusal",
        "capacity counted at 100 %",
        "plan/planner.py",
        "_COUNTED_ON_PCT = 90",
        "_COUNTED_ON_PCT = 100",
        _PLANNER,
    ),
    _rule(
        "6 refusal",
        "_CROWDED a hundred times larger",
        "plan/planner.py",
        "_CROWDED = 50",
        "_CROWDED = 5000",
        _PLANNER,
    ),
    _rule(
        "6 refusal",
        "a crowd is refused without the time it needs itself",
        "plan/planner.py",
        "if crowded and queued_ns > slack_ns:",
        "if crowded and queued_ns > objective_ns - now_ns:",
        _PLANNER,
    ),
    _rule(
        "6 refusal",
        "who is refused is not told when to come back",
        "plan/planner.py",
        'than can be done", excess_ns)',
        'than can be done")',
        _PLANNER,
    ),
    # -- 7. classes -------------------------------------------------------------------------------------------------
    _rule(
        "7 classes",
        "classes inverted in the planner's order",
        "plan/planner.py",
        "return request.priority * _CLASS_STEP + request.objective_ns - rest_ns",
        "return -request.priority * _CLASS_STEP + request.objective_ns - rest_ns",
        _PLANNER,
    ),
    # -- how: the planner -------------------------------------------------------------------------------------------
    _rule(
        "plan",
        "slack ignores the rest",
        "plan/planner.py",
        "_CLASS_STEP + request.objective_ns - rest_ns",
        "_CLASS_STEP + request.objective_ns",
        _PLANNER,
    ),
    _rule(
        "plan",
        "waits of later queues are not set aside, by chance",
        "plan/planner.py",
        "return self._by_chance(chances, queue, node, left_ns - plan.waits_behind_ns[node], now_ns)",
        "return self._by_chance(chances, queue, node, left_ns, now_ns)",
        _PLANNER,
    ),
    _rule(
        "plan",
        "waits of later queues are not set aside, by percentile",
        "plan/planner.py",
        "in_time = self._in_time(plan, queue, node, left_ns - plan.waits_behind_ns[node], lean)",
        "in_time = self._in_time(plan, queue, node, left_ns, lean)",
        _PLANNER,
    ),
    _rule(
        "plan",
        "waits are never looked at",
        "plan/planner.py",
        "                plan.set_waits(waits)",
        "                pass",
        _PLANNER,
    ),
    _rule(
        "plan",
        "a wait that was chosen counts as crowd",
        "plan/planner.py",
        "            waited_ns -= batch.sent_ns - held_since",
        "            pass",
        _PLANNER,
    ),
    _rule(
        "plan",
        "the price of lateness is never halved",
        "plan/chance.py",
        "        price_usd /= 2",
        "        pass",
        _CHANCE,
    ),
    _rule("plan", "one halving more", "plan/chance.py", "HALVINGS = 6", "HALVINGS = 7", _CHANCE),
)
