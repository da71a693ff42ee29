"""What type checkers refuse: exactly the lines that end with `# E`. Never run."""

from datetime import datetime

from tenure import Batch, Handle, Item, Running, Tenure
from tenure.store import AsyncStore, Store
from tests.client.typing_good import (
    Report,
    TrainSpec,
    answers,
    app,
    async_with_the_job,
    nothing,
    only_the_job,
    plain,
    send,
    train,
)

# --- calls ---------------------------------------------------------------------------------------

send.enqueue("ada")  # E
send.enqueue("ada", subject=5)  # E
send.enqueue("ada", "hi", True)  # E
send.enqueue("ada", "hi", urgent="yes")  # E
send.enqueue("ada", "hi", colour="red")  # E
send.call(5, "hi")  # E
send.options(priority=-5).enqueue("ada")  # E
send.options(priority=-5).call("ada", 5)  # E
nothing.enqueue(1)  # E
plain.enqueue("1")  # E
plain.enqueue(1, 2, "x")  # E
plain.enqueue(1, more=2)  # E
send("ada", "hi")  # E


async def in_async_code() -> None:
    await send.enqueue_async("ada")  # E
    await send.options(priority=-5).enqueue_async("ada", subject=5)  # E
    number: int = await (await send.enqueue_async("ada", "hi")).wait_async()  # E
    print(number)


# --- the injected job is not the caller's to give ------------------------------------------------


def with_a_job(job: Running) -> None:
    train.enqueue(job, TrainSpec(epochs=1))  # E
    only_the_job.enqueue(job)  # E
    async_with_the_job.enqueue(job, 3)  # E


train.enqueue(3)  # E
only_the_job.enqueue(1)  # E
async_with_the_job.enqueue(n=3)  # E

# --- results -------------------------------------------------------------------------------------

text: str = train.enqueue(TrainSpec(epochs=1)).wait()  # E
report: Report = send.enqueue("ada", "hi").wait()  # E
number: int = answers.enqueue("u").wait()  # E
handle: Handle[int] = send.enqueue("ada", "hi")  # E
several: list[Handle[int]] = app.enqueue_many([send.call("ada", "hi")])  # E

# --- steps ---------------------------------------------------------------------------------------


def plain_step(order: int) -> str:
    return str(order)


async def in_steps(job: Running) -> None:
    job.step("plain", plain_step, "3")  # E
    job.step("plain", plain_step)  # E
    job.step(3, plain_step, 3)  # E
    await job.step_async("plain", plain_step, orders=3)  # E
    number: int = job.step("plain", plain_step, 3)  # E
    print(number)


# --- options -------------------------------------------------------------------------------------

send.options(dely_seconds=5)  # E
send.options(delay_seconds="5")  # E
send.options(key=5)  # E
send.options(due_at="tomorrow")  # E
send.options(parents=5)  # E
app.task(retries=3)  # E
app.task(queue=5)  # E
app.task(isolation="thread")  # E
app.task(retry=5)  # E
app.task(fail_on=ValueError)  # E


@app.task  # E
def bare() -> None: ...


# --- the application -----------------------------------------------------------------------------

Tenure(5)  # E
app.get("7")  # E
app.wait(7, 30)  # E
app.enqueue_many([send])  # E
app.enqueue_many(send.call("ada", "hi"))  # E
app.count_finished(datetime.now, datetime.now)  # E
app.handle(7, send)  # E
app.run_worker(["default"])  # E
app.run_worker(lease=5)  # E
app.listen(with_a_job)  # E
app.schedule("@daily", timezone="UTC")  # E
app.schedule("@daily", catch_up="some")  # E
app.schedule("@daily")(len)  # E
app.schedules.add("s", len, cron="@daily")  # E
app.schedules.edit("s", cron=5)  # E
app.schedules.runs("s", limit="all")  # E
app.workflow_run(1).wait(5)  # E


async def in_the_wrong_colour(store: Store, async_store: AsyncStore) -> None:
    store.get("7")  # E
    store.list_jobs(queue=5)  # E
    await store.get(7)  # E
    await async_store.get("7")  # E
    print(async_store.get(7).state)  # E
    AsyncStore.get(store, "7")  # E


@app.task(batch=Batch())
def sizes(items: list[Item[str]]) -> list[int]:
    return [len(item.value) for item in items]


sizes.enqueue(5)  # E
sizes.enqueue("a", "b")  # E
sizes.options(replace="yes")  # E
app.task(batch=5)  # E
