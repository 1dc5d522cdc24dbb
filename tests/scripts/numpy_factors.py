"""A matrix of ratings as a product of two, by stochastic gradients with NumPy."""

import sys

import numpy as np

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
random = np.random.default_rng(1)
USERS, ITEMS = 40, 30
true = random.standard_normal((USERS, 3)) @ random.standard_normal((3, ITEMS))


def ratings(count):
    user, item = random.integers(USERS, size=count), random.integers(ITEMS, size=count)
    return user, item, (true[user, item] + 0.1 * random.standard_normal(count)).astype(np.float32)


def errors(user, item, rating):
    return (users[user] * items[item]).sum(1) - rating


def batches(arrays):
    for start in range(0, len(arrays[0]), BATCH):
        yield [one[start : start + BATCH] for one in arrays]


train, test = ratings(16 * STEPS // 5), ratings(1000)
users = random.standard_normal((USERS, 4)).astype(np.float32)
items = random.standard_normal((ITEMS, 4)).astype(np.float32)
with speedo.join({"users": users, "items": items}) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for u, i, rating in run.share(train, BATCH):  # speedo: for u, i, rating in batches(train):
            error = errors(u, i, rating)[:, None] / len(rating)
            of_users, of_items = error * items[i], error * users[u]
            np.subtract.at(users, u, 0.8 * of_users)
            np.subtract.at(items, i, 0.8 * of_items)
            run.step()  # speedo
print(f"loss {(errors(*test) ** 2).mean():.4f}")
if FILE:
    np.savez(FILE, users=users, items=items)
