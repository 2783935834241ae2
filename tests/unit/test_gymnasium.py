"""The environment for Gymnasium: its own checks, and that policies earn in it what they earn in `simulate`."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import bilinq
from bilinq.errors import BadInput
from bilinq.plugins.gymnasium import ID, PolicyAgent, SlotsEnv

PROBLEM = bilinq.Problem.synthetic(job_classes=3, server_classes=2, traffic=0.7, seed=4)


@pytest.mark.filterwarnings("ignore:.*maximum value is infinity")  # queues have no bound
def test_gymnasium_accepts_it() -> None:
    env = gymnasium.make(ID, problem=PROBLEM, slots=20)
    assert isinstance(env.unwrapped, SlotsEnv)
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("policy", [bilinq.MaxWeight(), bilinq.Sabr(V=10.0)], ids=["MaxWeight", "Sabr"])
def test_a_policy_earns_what_it_earns_in_simulate(policy: bilinq.Policy) -> None:
    """To the last bit over 300 slots, more than one block of arrivals; another seed earns something else."""
    runs = bilinq.simulate(PROBLEM, policy, slots=300, seed=6)
    env = gymnasium.make(ID, problem=PROBLEM, slots=300, assignment=policy.assignment)
    observation, _ = env.reset(seed=6)
    agent, truncated, earned, queues = PolicyAgent(policy, env, seed=6), False, [], []
    while not truncated:
        queues.append(observation["queue"])
        observation, _, _, truncated, info = env.step(agent.act(observation))
        agent.learn(info["outcome"])
        earned.append(info["expected"])
    np.testing.assert_array_equal(queues, runs.queue[0])
    np.testing.assert_array_equal(earned, runs.reward[0])
    assert not np.array_equal(earned, bilinq.simulate(PROBLEM, policy, slots=300, seed=7).reward[0])


def test_gymnasium_runs_several_at_once() -> None:
    envs = gymnasium.make_vec(ID, num_envs=3, vectorization_mode="sync", problem=PROBLEM, slots=5)
    observation, _ = envs.reset(seed=1)
    assert observation["queue"].shape == (3, 3)
    envs.action_space.seed(1)
    for _ in range(5):
        _, reward, _, truncated, _ = envs.step(envs.action_space.sample())
    assert reward.shape == (3,) and truncated.all()


def test_actions_are_made_feasible_or_refused() -> None:
    eligible = np.array([[True, False], [True, True], [True, True]])
    problem = bilinq.Problem.synthetic(job_classes=3, server_classes=2, traffic=0.7, eligible=eligible, seed=4)
    env = SlotsEnv(problem, slots=5)
    env.reset(seed=1)
    feasible = env._feasible(np.full((3, 2), 4.0), np.array([1.0, 1.0, 0.0]))[0]
    half = problem.servers / 2
    np.testing.assert_allclose(feasible, [[half[0], 0.0], [half[0], problem.servers[1]], [0.0, 0.0]])
    for action, message in ((np.ones(3), r"action must have shape \(3, 2\); got \(3,\)"),
                            (np.full((3, 2), np.nan), "action must be finite")):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            env.step(action)


def test_agents_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="env must be a bilinq/Slots-v0 environment"):
        PolicyAgent(bilinq.MaxWeight(), gymnasium.make("CartPole-v1"))
    other = "independent" if bilinq.MaxWeight().assignment == "distinct" else "distinct"
    with pytest.raises(BadInput, match="env must have assignment = "):
        PolicyAgent(bilinq.MaxWeight(), SlotsEnv(PROBLEM, assignment=other))


def test_without_gymnasium_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['gymnasium'] = None; import bilinq.plugins.gymnasium"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "bilinq[gymnasium] is not installed; run: pip install 'bilinq[gymnasium]'" in done.stderr
