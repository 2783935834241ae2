"""The environment for Gymnasium: its own checks, and that policies earn in it what they earn in `simulate`."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import bilinq
from bilinq.errors import BadInput
from bilinq.plugins.events_env import EventsEnv, RouterAgent
from bilinq.plugins.gymnasium import ID, PolicyAgent, SlotsEnv
from bilinq.routing.routers import ClassGaussian, LeastBusy, Matching, QueuePrice
from workloads import random_fleet

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


@pytest.mark.parametrize("module", ["gymnasium", "events_env"])
def test_without_gymnasium_the_error_says_what_to_install(module: str) -> None:
    code = f"import sys; sys.modules['gymnasium'] = None; import bilinq.plugins.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "bilinq[gymnasium] is not installed; run: pip install 'bilinq[gymnasium]'" in done.stderr


@pytest.mark.filterwarnings("ignore:.*m(in|ax)imum value is -?infinity")
def test_gymnasium_accepts_events() -> None:
    check_env(gymnasium.make("bilinq/Events-v0", workload=random_fleet(30, seed=2)).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    "router",
    [LeastBusy(), QueuePrice(ClassGaussian(), price=0.1), Matching(ClassGaussian()), bilinq.SchedulerRouter(2.0)],
    ids=lambda router: type(router).__name__,
)
def test_a_router_starts_in_the_environment_what_it_starts_in_replay(router: bilinq.Router) -> None:
    work = random_fleet(300, seed=3)
    run = bilinq.replay(work, router, seed=5)
    env = gymnasium.make("bilinq/Events-v0", workload=work)
    agent = RouterAgent(router, env)
    _, info = env.reset(seed=5)
    total, done = 0.0, False
    while not done:
        _, reward, done, _, info = env.step(agent.act(info))
        total += float(reward)
    played = agent.env.playback.record("", 0.0)
    np.testing.assert_array_equal(played.server, run.server)
    np.testing.assert_array_equal(played.start, run.start)
    np.testing.assert_allclose(total, np.nansum(run.reward), rtol=1e-9)
    assert not np.array_equal(run.start, bilinq.replay(work, bilinq.routing.routers.RoundRobin(), seed=5).start)


def test_a_job_that_may_not_start_waits_and_waiting_costs() -> None:
    work = bilinq.Workload(
        arrival=[0.0, 0.0, 4.0], reward=[[1.0, np.nan], [0.5, 0.5], [0.2, 0.2]], duration=3.0, servers={"a": 1, "b": 1}
    )
    env = EventsEnv(work, holding=0.1)
    _, info = env.reset(seed=1)
    assert info["job"] == 0 and info["mask"].tolist() == [1, 0, 1, 1]
    _, reward, _, _, info = env.step(np.int64(1))  # not eligible
    assert info["job"] == 1 and reward == 0.0
    _, _, _, _, info = env.step(np.int64(3))  # all wait until the third job arrives
    assert info["now"] == 4.0 and info["job"] == 0
    _, reward, _, _, info = env.step(np.int64(0))
    assert reward == pytest.approx(-0.4) and info["job"] == 1
    with pytest.raises(BadInput, match="action must be a whole number from 0 to 3; got 4"):
        env.step(np.int64(4))
    with pytest.raises(BadInput, match="env must be a bilinq/Events-v0 environment"):
        RouterAgent(LeastBusy(), gymnasium.make("CartPole-v1"))
