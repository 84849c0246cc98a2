"""A worker that tells all it knows, its environment and command lines with secrets among it, and then fails."""

import os
import sys

LINES = {
    "--hf-token {}": "hf_abcdefghijklmnopqrstuvwxyz0123",
    "train.py --api-key={} --lr 1": "Zebra42",
    "cloning https://bot:{}@example.com/x.git": "giraffe7",
    "GET https://store/x?sig=1&access_token={}": "okapi9000",
    "Authorization: Bearer {}": "kudu.def.ghi",
    "sshpass -p pw ssh admin:{}@node7:22": "gnu4321",
    "using {} now": "AKIAIOSFODNN7EXAMPLE",
    "got {}": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----": "b3BlbnNzaC1rZXktdjE",
}
"""What libraries print, and the secret in it."""

if __name__ == "__main__":
    for pattern, secret in LINES.items():
        print(pattern.format(secret))
        print(pattern.format(secret), file=sys.stderr)
    for name, value in os.environ.items():
        print(f"{name}={value}")
        print(f"{name} holds {value}", file=sys.stderr)
    sys.exit(f"no login with {os.environ['WANDB_API_KEY']}")
