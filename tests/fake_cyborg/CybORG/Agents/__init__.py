class B_lineAgent:
    pass


class RedMeanderAgent:
    pass


class SleepAgent:
    pass
