"""Jobs that many command-line tests ask about."""

JOB = ("llama3.1-8b", "--cluster", "dgx-h100:1", "--seq-len", "8192", "--global-batch", "64")
TOO_LARGE = ("llama3.1-405b", "--cluster", "dgx-h100:1", "--seq-len", "8192", "--global-batch", "8")
