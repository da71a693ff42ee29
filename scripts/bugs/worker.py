"""Bugs of the worker: heartbeats, settlements, slots, shutdown, handlers.

Other queues have had them, or a first draft of this one.
"""

from scripts.bugs.bug import BEHIND, UNUSED, Bug, python

NONE: tuple[str, ...] = ()

WORKER = (
    Bug(
        "heartbeat-stops-before-publishing", "a lease whose handlers have ended is not renewed",
        "tests/worker/test_heartbeats.py::test_heartbeats_go_on_until_the_settlement_has_landed",
        (python("worker/settling/heartbeat", "            if not lease.given_up:",
                "            if any(not job.end_taken for job in lease.jobs.values()):"),),
        NONE,
    ),
    Bug(
        "heartbeat-gives-up", "the first error ends the thread of heartbeats",
        "tests/worker/test_outages.py::test_an_error_of_the_store_ends_no_loop_of_the_worker",
        (python("worker/settling/heartbeat", "self._failing = True\n",
                "self._failing = True\n                return\n"),),
        NONE,
    ),
    Bug(
        "heartbeat-as-long-as-the-lease", "a heartbeat may be as long as the lease",
        "tests/worker/test_settings.py::test_two_heartbeats_must_fit_into_a_lease",
        (python("worker/settings", "if not 2 * self.heartbeat_seconds < shortest:",
                "if not self.heartbeat_seconds <= shortest:"),),
        NONE,
        unseen=UNUSED + "ask for such settings",
    ),
    Bug(
        "works-without-a-lease", "a worker that cannot renew goes on with its handlers",
        "tests/worker/test_heartbeats.py::test_a_worker_that_cannot_renew_stops_its_handlers_before_the_lease_ends",
        (python("worker/leases", "lease.safe_until <= now and", "lease.safe_until <= 0 and"),),
        NONE,
    ),
    Bug(
        "lost-lease-untold", "a handler whose lease is lost is not told",
        "tests/worker/test_heartbeats.py::test_a_lost_lease_is_told_to_the_handler_and_nothing_is_recorded",
        (python("worker/leases", "        if why is Stop.LOST:\n            self.lost.set()\n",
                "        if why is Stop.LOST:\n            return\n"),
         python("worker/leases", "                leased.lost.set()\n        return [", "                pass\n        return [")),
        NONE,
        unseen=BEHIND + "nothing that it writes is accepted",
    ),
    Bug(
        "late-answer", "a claim that is answered after its lease is run all the same",
        "tests/worker/test_heartbeats.py::test_jobs_whose_claim_is_answered_late_are_not_started",
        (python("worker/claiming/intake", "if now >= safe_until:", "if now >= safe_until + 1e9:"),),
        NONE,
    ),
    Bug(
        "lease-counted-from-answer", "a lease is counted from the answer to the claim",
        "tests/worker/test_heartbeats.py::test_jobs_whose_claim_is_answered_late_are_not_started",
        (
            python("worker/claiming/claimer", "safe_until = before + lease_seconds",
                   "safe_until = self._environment.monotonic() + lease_seconds"),
        ),
        NONE,
    ),
    Bug(
        "same-name", "a worker has the name of its host",
        "tests/worker/test_stopping.py::test_one_worker_serves_several_blocks_one_after_the_other",
        (python("worker/process", "-{os.getpid()}-{secret}", "{secret[:0]}"),),
        NONE,
    ),
    Bug(
        "settler-forgets", "a batch that the store did not take is not sent again",
        "tests/worker/test_outages.py::test_an_error_of_the_store_ends_no_loop_of_the_worker",
        (python("worker/settling/settler", "self._backlog.put_back(batch)\n", "pass\n"),),
        NONE,
    ),
    Bug(
        "settler-believes", "a batch that the store did not take counts as settled",
        "tests/worker/test_outages.py::test_an_error_of_the_store_ends_no_loop_of_the_worker",
        (python("worker/settling/settler", "self._backlog.put_back(batch)\n",
                "self._leased_jobs.settled([job for job, _ in batch])\n"),),
        NONE,
    ),
    Bug(
        "busy-is-settled", "a settlement that met a lock is dropped",
        "tests/worker/test_settling.py::test_a_row_that_somebody_has_locked_holds_up_no_other",
        (python("worker/settling/settler", "            self._backlog.locked.extend(batch)\n            return",
                "            self._leased_jobs.settled([job for job, _ in batch])\n            return"),),
        NONE,
    ),
    Bug(
        "settled-twice", "an attempt that timed out in a blocked event loop is settled twice",
        "tests/simulation/test_blocked_loop.py::test_an_attempt_that_timed_out_in_a_blocked_loop_is_settled_once",
        (
            python("worker/settling/blocked_loop", "        if not leased.take_end():\n            return\n"
                   "        leased.stop, leased.asked_at = Stop.TIMEOUT, now\n"
                   "        leased.lost.set()\n",
                   "        if leased.end_taken:\n            return\n"),
        ),
        NONE,
    ),
    Bug(
        "completed-unseen", "a job that completed itself is believed",
        "tests/worker/test_settling.py::test_a_completion_that_is_left_uncommitted_fails_when_its_lock_is_gone",
        (python("worker/running/run", "committed = seen.state.final and", "committed = True or"),),
        NONE,
    ),
    Bug(
        "sweeper-gives-up", "the first error ends the loop of sweeps",
        "tests/worker/test_outages.py::test_an_error_of_the_store_ends_no_loop_of_the_worker",
        (python("worker/upkeep/upkeep", "                failing = True\n            await",
                "                failing = True\n                return\n            await"),),
        NONE,
    ),
    Bug(
        "bell-is-the-truth", "a worker looks for work only when the bell rings",
        "tests/worker/test_idle.py::test_what_the_bell_did_not_tell_is_found_all_the_same",
        (python("worker/claiming/claimer", "await polling.rest(polling.look_at() - now())",
                "await polling.rest(3600.0)"),),
        NONE,
    ),
    Bug(
        "hoards", "a worker claims without looking at its slots",
        "tests/worker/test_claims.py::test_a_saturated_queue_does_not_stall_another",
        (python("worker/claiming/claimer", "limit = min(limit, slots + ahead - self._slots.in_use(queue))",
                "limit = min(limit, slots + ahead)"),
         python("worker/claiming/claimer", "room[kind] = free + prefetch if worth else 0",
                "room[kind] = executor.slots + prefetch"),),
        NONE,
        unseen=BEHIND + "what waits too long goes back",
    ),
    Bug(
        "slots-leak", "a job that was put back keeps its slot",
        "tests/worker/test_claims.py::test_jobs_that_wait_for_a_slot_of_their_queue_go_back_as_well",
        (python("worker/claiming/intake", "        self.slots.take_back(jobs)\n", ""),),
        NONE,
    ),
    Bug(
        "shutdown-forgets", "what has not started is not given back at shutdown",
        "tests/worker/test_stopping.py::test_what_was_claimed_ahead_goes_back_at_once",
        (
            python("worker/claiming/intake", "    def put_back_unstarted(self) -> None:\n",
                   "    def put_back_unstarted(self) -> None:\n        return\n"),
        ),
        NONE,
    ),
    Bug(
        "starts-while-draining", "what a claim brings after the stop is started",
        "tests/worker/test_stopping.py::test_jobs_that_a_claim_brings_after_the_stop_do_not_start",
        (python("worker/claiming/intake", "        if self._stopping:  # the claim was under way",
                "        if False:  # the claim was under way"),),
        NONE,
        unseen=BEHIND + "the drain waits for it, or gives it back",
    ),
    Bug(
        "drains-for-ever", "a shutdown waits for its handlers without a limit",
        "tests/worker/test_stopping.py::test_what_does_not_finish_goes_back_uncharged",
        (python("worker/settling/drain", "await self._until_finished(self._settings.drain_seconds)",
                "await self._until_finished(3600.0)"),),
        NONE,
        unseen=UNUSED + "run for longer than anybody waits",
    ),
    Bug(
        "timeout-ignored", "the time limit of a job is not looked at",
        "tests/worker/test_timeouts.py::test_a_coroutine_is_cancelled_when_its_time_is_over",
        (python("worker/settling/timekeeper", "            and leased.stop in (None, Stop.CANCELLED)\n",
                "            and leased.stop is Stop.TIMEOUT\n"),),
        NONE,
        unseen=BEHIND + "no invariant says how long a handler may run",
    ),
    Bug(
        "exit-kills-worker", "a handler that raises SystemExit ends its worker",
        "tests/worker/test_handlers.py::test_base_exceptions_fail_the_attempt_and_not_the_worker",
        (python("worker/running/run", "        except BaseException as error:  # noqa: BLE001 -"
                " any exception of a handler is its failure",
                "        except Exception as error:"),),
        NONE,
        unseen=UNUSED + "raise such things",
    ),
    Bug(
        "result-not-storable", "a result that cannot be stored leaves the job as it is",
        "tests/worker/test_handlers.py::test_a_result_that_cannot_be_stored_fails_the_job",
        (python("worker/running/attempt", "        except InvalidInput as error:\n            why",
                "        except ZeroDivisionError as error:\n            why"),),
        NONE,
        unseen=UNUSED + "return such things",
    ),
    Bug(
        "unknown-task-dropped", "a task that this worker does not know fails",
        "tests/worker/test_handlers.py::test_an_unknown_task_goes_back_uncharged_later_and_later",
        (python("worker/running/attempt",
                '    return lifecycle.release(job, "no handler", _in_a_deploy(job))',
                '    return lifecycle.fail(job, Json(b"{}"), "no handler")'),),
        NONE,
        unseen=UNUSED + "enqueue what no worker knows",
    ),
    Bug(
        "unknown-task-spins", "a task that this worker does not know comes back at once",
        "tests/worker/test_handlers.py::test_an_unknown_task_goes_back_uncharged_later_and_later",
        (python("worker/running/attempt",
                '    return lifecycle.release(job, "no handler", _in_a_deploy(job))',
                '    return lifecycle.release(job, "no handler", 0.0)'),),
        NONE,
        unseen=UNUSED + "enqueue what no worker knows",
    ),
    Bug(
        "undecodable-for-ever", "arguments that do not fit are tried for ever",
        "tests/worker/test_handlers.py::test_arguments_that_do_not_fit_wait_for_a_deploy_and_then_fail",
        (python("worker/running/attempt", "    return job.token - job.attempts <= DEPLOY_TRIES",
                "    return bool(job.token)"),),
        NONE,
        unseen=UNUSED + "enqueue such arguments",
    ),
    Bug(
        "no-back-off", "what has failed is tried again at once",
        "tests/unit/test_attempt.py::test_a_failure_waits_as_the_policy_of_its_job_says",
        (python("worker/running/attempt",
                "return lifecycle.retry(self.job, error, self._delay(), reason, seconds)",
                "return lifecycle.retry(self.job, error, 0.0, reason, seconds)"),),
        NONE,
        unseen=BEHIND + "no invariant says when to try again",
    ),
    Bug(
        "steps-forgotten", "an attempt does not know the steps of the ones before",
        "tests/worker/test_steps.py::test_every_attempt_gets_what_the_first_one_did",
        (python("worker/running/context", "Steps(known=not self._job.features & _STEPS)",
                "Steps(known=True)"),),
        NONE,
    ),
)  # fmt: skip
