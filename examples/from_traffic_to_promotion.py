"""From an agent's traffic to a promoted prompt, in one store: judged live, improved, asked of last week's requests,
compared with the judge's error counted in, and rolled out to users who look after it.

The models are scripted, so that it runs anywhere in seconds: `assistant` knows only what its instructions say,
`writer` reads facts off feedback, and `judge` is lenient with some wrong answers. With real ones, leave out `backend`
and `clock`, and name models of yours. It needs `pip install 'modelyard[prompts]'`."""

import re
from datetime import timedelta
from decimal import Decimal
from zlib import crc32

from modelyard import NotWorse, Pricing, ScriptedBackend, open_platform
from modelyard.testing import ManualClock

FACTS = {"refunds": "fourteen days", "shipping": "two working days", "gifts": "three euros", "hours": "nine to five"}
TOPICS = list(FACTS)
PLEASE = ("Hello.", "Good morning.", "One question.", "Excuse me.", "Quickly:", "I wonder.")
VARIANT = "variants/desk/support@prod"
FENCE = "`" * 3


def script(request):
    """Answer as the three models do."""
    text = request.messages[-1].text
    if request.model == "writer":
        instructions = text.split(f"{FENCE}\n")[1].split(f"\n{FENCE}")[0]
        seen = re.findall(r"What about (\w+)\?.*?expected: ([a-z ]+)", text, re.DOTALL)
        return f"{FENCE}\n{instructions}{next((f' {a}: {b}.' for a, b in seen if a not in instructions), '')}\n{FENCE}"
    if request.model == "judge":
        return "yes" if any(fact in text for fact in FACTS.values()) or crc32(text.encode()) % 5 == 0 else "no"
    known = dict(re.findall(r"(\w+): ([a-z ]+)\.", request.messages[0].text))
    return known.get(re.findall(r"What about (\w+)", text)[0], "I do not know.")


def question(number):
    """What the user of a number asks."""
    return f"{PLEASE[number % len(PLEASE)]} What about {TOPICS[number % len(TOPICS)]}? ({number})"


def likes(number, text):
    """Whether the user of a number likes an answer: most like right ones."""
    return number % 10 > 0 if FACTS[TOPICS[number % len(TOPICS)]] in text else number % 10 == 0


clock = ManualClock()
backend = ScriptedBackend(script, ["assistant", "writer", "judge"], pricing=Pricing(completion=Decimal("0.00001")))
platform = open_platform(backend=backend, clock=clock)

# 1. An agent is served under a name. Its prompt is a version, and an alias says which one users get.
platform.variants.publish("desk/support", model="assistant", system="Answer the customer.")
platform.variants.promote("desk/support", 1)

# 2. A judge looks at half of its traffic, on a purse of its own. People label some of that, for a judge errs.
judge = {
    "type": "llm_judge",
    "model": "judge",
    "prompt": "Is this right, yes or no? {prompt} {output}",
    "options": {"max_tokens": 8},
}
watch = platform.review.watches.start(VARIANT, {"right": judge}, share=0.5, purse="1")
for number in range(160):
    platform.chat.complete(model=VARIANT, messages=question(number), user=f"user {number}", max_tokens=20, store=True)
platform.review.watches.look(watch.id)
clock.advance(timedelta(days=1).total_seconds())
platform.review.watches.look(watch.id)

review = platform.review.start(platform.review.watches.days(watch.id)[0].run_id, rows=40)
for row in platform.review.rows(review.id, "ann"):
    platform.review.label(review.id, "ann", row.place, any(fact in row.output for fact in FACTS.values()))
(day,) = platform.review.watches.days(watch.id)
print(f"live      {day.mean}")

# 3. What people know becomes tasks, and a job writes a better prompt for them: the newest version of the variant.
tasks = [{"prompt": question(number), "expected": FACTS[TOPICS[number % len(TOPICS)]]} for number in range(48)]
seen, unseen = tasks[::2] + tasks[1:24:2], tasks[25::2]
job = platform.training.prompt("desk/support", seen, "contains", reflection="writer", calls=300, budget="2", seed=1)
platform.worker().run_until_idle()
better, spent = job.version(), list(job.proposals())[-1].spent
print(f"improved  to version {better.number} for {spent} USD: {better.content.system!r}")

# 4. Last week's requests are asked of it before any user gets it, at a price that is known before.
asked = {"since": "7d", "model": f"variants/desk/support@{better.number}", "judge": judge}
print(f"estimate  {platform.traffic.what_if.estimate(**asked)}")
print(f"what if   {platform.traffic.what_if(**asked, budget='1')}")

# 5. On rows that the job has not seen, it must not be worse.
names = ["variants/desk/support@1", f"variants/desk/support@{better.number}"]
before, after = platform.evaluations.run_each("support", names, unseen, "contains", project="desk")
print(platform.evaluations.compare(before, after))
platform.evaluations.assert_not_worse(baseline=before, candidate=after, margin=0.02)

# 6. It comes to some users, then to more, as long as what they say shows that it is not worse. Else it goes back.
rollout = platform.rollouts.start(
    "variants/desk/support", better.number, canary=[0.25, 1.0], guard=NotWorse("thumbs", margin=0.1)
)
first = 1000
while not rollout.state.ended:
    for number in range(first, first + 100):
        answer = platform.chat.complete(model=VARIANT, messages=question(number), user=f"user {number}", max_tokens=20)
        platform.rollouts.score(answer.id, likes(number, answer.text))
    first += 100
    clock.advance(60)
    rollout = platform.rollouts.look(rollout.id)
print(platform.rollouts.standing(rollout.id))
assert rollout.state == "promoted"

# 7. All of it is in one store, and so is what it cost: answers, judges, proposals and comparisons.
(total,) = platform.usage.total()
print(f"cost      {total.cost} USD of {total.requests} requests")
