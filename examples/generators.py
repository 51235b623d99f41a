"""Reinforcement learning with one trainer and two generators: WeightSync beside gloo.

Generators choose an action for each state and send both to the trainer. It takes a step in float32 towards
rewarded actions, and sends the weights, rounded to bfloat16, to the generators.

torchrun --standalone --nproc-per-node 3 generators.py
"""

import torch
import torch.distributed as dist

import compcoll.torch

STATES, ACTIONS, BATCH, STEPS = 64, 8, 256, 30


def make(dtype):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(STATES, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, ACTIONS),
    ).to(dtype)


def generate(model):
    """States and chosen actions, one row for each state."""
    state = torch.randint(STATES, (BATCH,))
    with torch.no_grad():
        logits = model(torch.nn.functional.one_hot(state, STATES).to(torch.bfloat16)).float()
    return torch.stack([state, torch.multinomial(logits.softmax(-1), 1)[:, 0]], 1)


def learn(master, optimizer, batch):
    """Take a step towards rewarded actions, the remainders of states; return the mean reward."""
    state, action = batch.unbind(1)
    reward = (state % ACTIONS == action).float()
    logits = master(torch.nn.functional.one_hot(state, STATES).float())
    chosen = logits.log_softmax(-1).gather(1, action[:, None])[:, 0]
    optimizer.zero_grad()
    (-(reward - reward.mean()) * chosen).mean().backward()
    optimizer.step()
    return reward.mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = make(torch.bfloat16)
    weights = compcoll.torch.WeightSync(model, src=0)
    master = make(torch.float32) if rank == 0 else None
    optimizer = torch.optim.Adam(master.parameters(), 3e-3) if master else None
    for step in range(STEPS):
        report = weights.sync()
        mine = generate(model)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())] if rank == 0 else None
        dist.gather(mine, everyone)
        if rank == 0:
            reward = learn(master, optimizer, torch.cat(everyone[1:]))
            model.load_state_dict(master.state_dict())  # rounds
            if step % 10 in (0, 9):
                print(f"step {step}: reward {reward:.2f}; {report}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
