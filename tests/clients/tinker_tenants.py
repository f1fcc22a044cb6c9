"""Tenants of Tinker's interface: `python tinker_tenants.py URL KEY...` trains an adapter for each on the base "tiny".

Ranks, first weights, layers and rows are those of a seed. Prints the costs of all steps, and what a sampler with the
trained weights says of the same tokens: of all tenants at once, and of each by itself.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import tinker


def trained(url: str, key: str, seed: int) -> dict[str, list[float]]:
    ids = [20 + (7 * seed + 3 * place) % 50 for place in range(24)]
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * 23},
    )
    with tinker.ServiceClient(base_url=url, api_key=key) as service:
        layers = {"train_unembed": seed % 2 == 0, "train_mlp": seed % 3 > 0}
        run = service.create_lora_training_client("tiny", rank=8 + seed, seed=seed, **layers).result()
        costs = []
        for _ in range(5):
            learned = run.forward_backward([datum], "cross_entropy")
            run.optim_step(tinker.AdamParams(learning_rate=0.003)).result()
            costs.append(learned.result().metrics["loss:sum"])
        sampler = run.save_weights_and_get_sampling_client().result()
        found = sampler.compute_logprobs(tinker.ModelInput.from_ints(ids)).result()
    return {"costs": costs, "sampled": [score for score in found if score is not None]}


def main(url: str, *keys: str) -> None:
    seeds = range(len(keys))
    with ThreadPoolExecutor(len(keys)) as pool:
        together = list(pool.map(lambda seed: trained(url, keys[seed], seed), seeds))
    print(json.dumps([together, [trained(url, keys[seed], seed) for seed in seeds]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
