"""A table of what judges say, and how it is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.evaluation.scorers import LlmJudge, Unscored
from modelyard.stated import LONGEST, rating_in, verdict_in

YES = """
Yes.
yes
**Yes**
__Yes__
`yes`
# Verdict: **PASS**
The judgement is: _correct_
It is correct
That is not incorrect.
Knowing this: yes
There are no issues. PASS
No issues were found, and nothing is missing. The answer passes
No errors. Pass.
I see no problem here: true
The response says no, which is what is expected. Verdict: yes
No mistakes! Yes
Is anything false? No issue was found. Correct.
First I thought it was false. It is true.
It fails at first sight, but on a second look it is correct
Verdict: yes. The opposite would be false, and the reference says no such thing.
Final verdict: Yes - the claim is not false, no doubt
**Verdict:** Yes
Verdict — see below. Verdict = true
Does it answer yes or no? It answers with yes
It says neither yes nor no to the first part, but the second is correct.
Nothing is incorrect.
That isn't false.
Answer: "yes"
{"reasoning": "There is no error. Is it false? No.", "verdict": "yes"}
{"verdict": true, "reasoning": "No."}
```json\\n{"correct": true, "why": "nothing is false"}\\n```
Here it is: {"result": {"passed": true}} No more.
{"is_correct": true}
结论：Yes
答案是yes
ＹＥＳ
是
Вердикт: да
結論:はい
oui
Ja.
Passed
It's true
The response is not only correct but complete
The response gives the correct answer.
It does not contradict the reference. Correct.
It does not contradict the correct answer.
I have no doubt that it is correct
There is no question that the answer is correct.
It cannot be denied that it is correct
It doesn't matter how it is written: the answer is correct
It is not long, but it is correct
Not only is it complete, it is correct
Though not polite, the answer is correct.
While it isn't long, the answer is correct
I do not see errors, so it is correct.
It does not fail any check
I don't think that it fails
It doesn't fail to pass
It is true, although some may call it false
I need to decide whether it is correct. It is correct.
It looks partially correct at first. It is correct
Answer: yes, if one reads it kindly
The second half is correct
What is missing is not needed, and it is correct
It appears to be correct
Verdict: 'yes'
Yes\\n\\nExplanation: nothing is wrong, though a reader might call it false
<verdict>yes</verdict>
\\boxed{yes}
{"score": 4, "verdict": "pass"}
{"verdict": {"passed": "yes"}, "score": 2}
"""

NO = """
The response does not provide the correct answer.
The answer doesn't match the correct answer
The model did not give a correct response.
It fails to be correct
The response fails to give the correct answer.
It fails to pass
I don't think this is correct.
I do not believe the answer is correct
It does not appear that the answer is correct.
The output doesn't seem to be correct
It could not be verified as correct
None of the answers is correct
Nobody would say that this is correct
There is no correct answer in it.
It provides no correct information.
unable to give a correct answer
It misses the correct value
It contradicts the correct answer
The answer differs from the correct one
It gives 5 instead of the correct answer
It is not true that the answer is correct
It is wrong to call it correct
less than correct
neither complete nor correct
neither correct nor complete
Neither is it correct
The output is not what a correct answer needs
No — although parts of it are correct.
No, it's only partly correct.
No. To pass, it must name the city
It fails, while the reference is correct
It isn't what the correct answer says
No
No.
NO!
no\\n
**No**
**No**, the answer is wrong
*no*
The response claims it is true that Paris is in Spain. Verdict: No
Is it correct? No.
Is the claim true? No, it is not.
Is it correct: yes or no? no
It is not correct.
It isn't true.
It isn’t true
It is not entirely correct
It is not at all correct
That is by no means correct.
It's no longer true
Nothing of this counts. Fail
None are correct
never true
**Not correct**, no.
Rather not. No.
Yes, it is fluent. But the facts are wrong: No
The language is correct. The facts are not. Verdict: no
Verdict: incorrect. The correct answer is Paris.
No. The correct answer is Paris.
The correct answer would be 5, so this is false
No it does not
No, because it is true that Rome is in Italy, which the answer denies: false
Verdict: **FAIL** (there are no correct parts)
Result: not correct
Final answer: no
{"verdict": "no", "reason": "The claim is true."}
{"reasoning": "yes, but", "answer": false}
{"score": false}
It failed
结论：No。
答案是No
否
Вердикт: нет
nein
hardly correct
it is far from correct
far from being correct
anything but correct
nowhere near correct
scarcely correct
Verdict: 'no'
No\\n\\nExplanation: although it is true that A holds, B does not.
NO\\n**Reason:** it would be true without the last line
{"score": 4, "passed": false}
"""

NEITHER = """

Perhaps.
The statement is neither true nor false
I cannot answer yes or no.
true/false
Pass or fail? I do not know.
Is this correct?
There are no issues.
No issues were found
No. 5 is the one
no-brainer
Knowing nothing, I note the notary.
correctly, falsely
The correct answer is Paris.
{"verdict": null}
{"verdict": null, "reasoning": "It is true that nothing can be decided."}
{}
passport
是不是
The answer is partially correct
partly true
It is half correct
Almost correct.
yes and no
both true and false
I need to determine whether the response is correct
Let me check if it is correct.
If it is correct
A correct answer mentions Paris.
The correct answer mentions Paris
As the correct answer says
Correct answer would be Paris
In order to pass
The answer must be correct
It would be correct if it said Rome
"""

NUMBERS = """
4 => 4
7/10 => 7
7 / 10 => 7
**7**/10 => 7
I give it 7 out of 10. => 7
7.5 out of a possible 10 => 7.5
7.0 of 10 => 7
From 1/10 to 10/10: 7/10. => 7
4 (scale 1-5) => 4
4 (on a scale of 1 to 5) => 4
4 (1-5) => 4
4 (1–5) => 4
4 [1..5] => 4
4 (from 1 to 5) => 4
4 (1 = bad, 5 = good) => 4
4 (max 5) => 4
4 (out of 5) => 4
4 (of 5) => 4
4 (5 is best) => 4
4 (1 lowest, 5 highest) => 4
8 points out of 10 points => 8
3 stars of 5 => 3
4 ⭐ out of 5 => 4
7 pts / 10 => 7
8 von 10 => 8
5 of 5 claims are wrong. I give 2 => 2
Score: 4. It has 3 errors. => 4
Rating (1-5): 4, of 6 claims 2 are wrong, 3/6 unclear => 4
4\\nReason: 3 of 7 claims are wrong => 4
(4) => 4
-1 (scale -2 to 2) => -1
4, on a scale from 1 to 5 => 4
On a scale of 1 to 10, I give it 8 => 8
8 on a 1-10 scale => 8
8 on a 10-point scale => 8
8 on the scale of 10 => 8
Score (1-10): 7 => 7
Of 10 points: 7.5 => 7.5
I found 3 errors in 4 sentences, so 2/5 => 2
4/5 because 1 of 5 claims is wrong, as 2024 shows => 4
Rating: [[8]] => 8
Rating: **8** => 8
first 3, then 4 => 4
between 3-4 => 3.5
I give it 8 because of 2 errors => 8
I would rate this a 7. It has 3 errors. => 7
I'd say 8, with 2 minor issues => 8
The score is 4 because it has 2 errors. => 4
This is a score of 4, as there are 2 errors => 4
A score of 5 means perfect, a score of 1 means bad. I give it a 3. => 3
This deserves a 4. It lists 3 of the facts. => 4
4 because 2 facts are wrong => 4
4 (because 2 facts are wrong) => 4
4, because 2 facts are wrong => 4
4 - it has 2 errors => 4
4: it has 2 errors => 4
4. It has 2 errors => 4
[4] misses 2 facts => 4
-2: it has 3 errors => -2
4\\n\\nThe answer has 2 errors => 4
It has 3 errors.\\n**4**\\nThat is because 2 of them are small => 4
1. It is right. 2. It is short. So 3 => 3
1. It is right.\\n2. It is short.\\nSo 3 => 3
5 - all is well, 1 - nothing is. This is a 4 => 4
The response gives 3 examples but misses 2; 4 => 4
3–4 => 3.5
5-4 => 4
4-5-6 => 6
2 to 3 of 5 steps fail. Score: 2 => 2
1-5: 4 => 4
−2 => -2
-2 => -2
Score: -0.5 => -0.5
８ => 8
评分：８／１０ => 8
評価：7点 => 7
{"reasoning": "2 of 3 are right", "score": 4} => 4
{"score": 4, "reasoning": "of 10 claims 9 hold"} => 4
{"score": "4/5"} => 4
```json\\n{"rating": 3}\\n``` => 3
4, where 5 is best => 4
4 where 1 is the worst and 5 the best => 4
4. 5 is the best possible score. => 4
4; 5 being the highest => 4
4, where the best is 5 => 4
4, up to 5 => 4
On a scale from 1 (worst) to 5 (best): 4 => 4
4 on a scale from 1 (worst) to 5 (best) => 4
\\frac{4}{5} => 4
$\\dfrac{4}{5} = 0.8$ => 4
\\tfrac45 => 4
\\boxed{\\frac{\\text{4}}{5}} => 4
Score: \\boxed{4}/5 => 4
{4 \\over 5} => 4
4 \\text{ out of } 5 => 4
The step \\frac{1}{2} is right. I give 4 => 4
4⁄5 => 4
4∕5 => 4
3½ => 3.5
4½ / 5 => 4.5
3\\frac{1}{2} / 5 => 3.5
I go with 4 => 4
I give 4 for good style => 4
"""


def lines(table: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in table[1:].splitlines()]


@each_case(
    ("answer", "verdict"),
    [(line, said) for table, said in ((YES, True), (NO, False), (NEITHER, None)) for line in lines(table)],
)
def test_the_verdict_of_a_judge(answer: str, verdict: bool | None) -> None:
    assert verdict_in(answer) is verdict


@each_case("line", lines(NUMBERS))
def test_the_number_of_a_judge(line: str) -> None:
    answer, _, number = line.rpartition(" => ")
    assert rating_in(answer) == float(number)


@each_case(
    "answer", ["", "good", "(scale 1-5)", "on a scale of 1 to 5", "true", '{"score": true}', "1e999", "½", "5 is best"]
)
def test_without_a_number_there_is_none(answer: str) -> None:
    assert rating_in(answer) is None


REASONS = ["The claim is true.", "No issues.", "Is it correct? No.", "It says 3 of 4.", "yes or no", "A false start!"]


@given(st.lists(st.sampled_from(REASONS), max_size=5), st.sampled_from(["yes", "no", "Pass", "FAIL", "**No**", "true"]))
def test_what_a_judge_reasons_first_does_not_count(reasons: list[str], verdict: str) -> None:
    for join in (" ", "\n"):
        for label in ("Verdict: ", ""):
            found = verdict_in(join.join([*reasons, label + verdict]))
            assert found is (verdict.strip("*").lower() in ("yes", "pass", "true"))
    said = json.dumps({"reasoning": " ".join(reasons), "verdict": verdict})
    assert verdict_in(said) is verdict_in(verdict)


LABELS = [
    "{}: ",
    "{} = ",
    "{} -> ",
    "{} → ",
    "<{}>",
    "<final_{}>\n",
    "**{}**: ",
    "<b>{}</b>: ",
    "| {} | ",
    "### {}\n",
    "{}\n\n",
]
LABELS += ["Final {}: ", "[{}] ", "[[", "({}: ", '"{}": "']
ENDS = ["", " </{}>", "]]", "|", "\n\n"]


@given(
    st.sampled_from(LABELS),
    st.sampled_from(ENDS),
    st.sampled_from(["yes", "no", "3", "4.5"]),
    st.lists(st.sampled_from(REASONS), max_size=3),
    st.lists(st.sampled_from(REASONS), min_size=1, max_size=3),
)
def test_what_a_judge_writes_around_its_labelled_answer_does_not_count(
    label: str, end: str, says: str, before: list[str], after: list[str]
) -> None:
    name = "Verdict" if says in ("yes", "no") else "Score"
    said = (label + says + end).replace("{}", "RESULT" if label == "[{}] " else name)
    answer = "\n".join([*before, said, *after])
    found = verdict_in(answer) if name == "Verdict" else rating_in(answer)
    assert found == {"yes": True, "no": False, "3": 3, "4.5": 4.5}[says], answer


@given(st.integers(1, 5), st.lists(st.sampled_from(REASONS), max_size=3))
def test_the_scale_is_not_the_number(number: int, reasons: list[str]) -> None:
    scales = ["/5", " out of 5", " (scale 1-5)", " (1 to 5)", ", where 5 is best", "; 5 being the best", ", 5 = top"]
    for said in (*(f"{number}{scale}" for scale in scales), f"(1-5) {number}", f"\\frac{{{number}}}{{5}}"):
        assert rating_in(" ".join([*reasons, said])) == number


@pytest.mark.slow
@given(st.integers(0, 9), st.sampled_from([0.5, 1, 2]), st.lists(st.sampled_from(REASONS), max_size=3))
def test_of_a_range_the_middle_is_the_number(least: int, more: float, reasons: list[str]) -> None:
    most = f"{least + more:g}"
    ranges = [
        "{}-{}",
        "{} - {}",
        "{}–{}",
        "{}~{}",
        "{} to {}",
        "from {} to {}",
        "between {} and {}",
        "Between {} and {}",
        "{} or {}",
    ]
    around = ["{}", "Score: {}", "**{}**", "{}/10", "{} out of 10", "Rating: {} (scale 1-10)", "{} stars", "I say {}."]
    for written in ranges:
        for one in around:
            answer = " ".join([*reasons, one.format(written.format(least, most))])
            assert rating_in(answer) == least + more / 2, answer
    assert rating_in(json.dumps({"reasoning": "7 of 9", "score": f"{least}-{most}"})) == least + more / 2


@given(st.text() | st.text(st.sampled_from("yes no true/.?:{}\"'1-5 (scale)*\n")))
def test_any_text_is_read(text: str) -> None:
    assert verdict_in(text) in (True, False, None)
    number = rating_in(text)
    assert number is None or isinstance(number, float)


@pytest.mark.parametrize(
    "piece",
    [
        "no ",
        "not ",
        "1",
        ".1",
        "1-",
        "1,000",
        "(1-",
        "yes or ",
        "{",
        "verdict: ",
        "a",
        "1 = ",
        "\n",
        "score ",
        "verdict\n",
        "# ",
        "[[",
        "<",
        "score] ",
    ],
)
def test_a_long_answer_is_read_by_its_end(piece: str) -> None:
    assert verdict_in(piece * (2 * LONGEST) + ". Verdict: yes") is True
    assert rating_in(piece * LONGEST + ". So 4/5") == 4


def test_labels_are_read_from_the_member_that_decides() -> None:
    judge = LlmJudge("m", "?", "labels", labels={"good": True, "bad": False})
    assert judge.read('{"label": "bad", "reason": "not as good as the reference"}') is False
    assert judge.read("First good, in the end **bad**.") is False
    with pytest.raises(Unscored):
        judge.read("fine")
