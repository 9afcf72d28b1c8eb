"""The environment: problems, answers and judgements, from the rules and a dialect."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.core.refusals import nearest
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply, Split, Transcript
from headrace.envs.text.wordle import game as rules_of_game
from headrace.envs.text.wordle import players
from headrace.envs.text.wordle.dialects import DIALECTS
from headrace.envs.text.wordle.game import Game, Rules
from headrace.envs.text.wordle.words import split, word_list

_GUESSES = {3: 4, 4: 5, 5: 6}
_WORDS = {3: 30}
"""Of the small game; the longer ones have the whole list."""


class WordleEnvironment:
    """Wordle with own word lists; also a teacher: an expert, and a novice, who guess at random.

    Args:
        letters: 3, 4 or 5.
        words: The first so many of the list are all words there are: secrets, and what may be guessed. None: 30 of three
            letters, all of four and five.
        guesses: Valid guesses in a game. None: one more than letters.
        dialect: ``brief`` for models that know characters only, ``guide`` for models that read English.
        held_out: Share of the words that are secrets of the evaluation split alone. 0: evaluation asks for the very words
            that are trained on, under ids that begin with ``seen:``.
        only_words: Guesses must be in the list. False: any letters will do, for models that know more words than the list.

    Raises:
        ConfigError: There is no such list or dialect, or a number is out of bounds.
    """

    def __init__(
        self,
        *,
        letters: int = 3,
        words: int | None = None,
        guesses: int | None = None,
        dialect: str = "brief",
        held_out: float = 0.2,
        only_words: bool = True,
    ) -> None:
        every = word_list(letters)
        count = _WORDS.get(letters, len(every)) if words is None else words
        _check(words=count, most=len(every), guesses=guesses, dialect=dialect, held_out=held_out)
        self.words = every[:count]
        """All words there are."""
        self.evaluates_seen = held_out == 0
        """Whether the evaluation split has the problems of the training split, on purpose."""
        self._dialect = DIALECTS[dialect]
        self.alphabet = self._dialect.alphabet
        """Characters that may occur in an episode; empty: any."""
        allowed = frozenset(self.words) if only_words else None
        self._rules = Rules(letters, _GUESSES[letters] if guesses is None else guesses, allowed)
        training, held = split(self.words, held_out)
        self._problems: dict[Split, tuple[Problem, ...]] = {
            "train": self._named("train", training),
            "eval": self._named("seen", training) if self.evaluates_seen else self._named("eval", held),
        }

    def dataset(self, split: Split) -> Sequence[Problem]:
        """A problem for each secret word of the split."""
        return self._problems[split]

    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        """The marks of the last guess, or that it was no valid move."""
        game = self.game(problem, transcript)
        if game.over:
            return Reply(done=True)
        return Reply((Message("user", self._dialect.answer(game)),))

    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        """1 for the word, 1/guesses for few of them, marks of the last guess if it was not found, 0.2 for good form."""
        game = self.game(problem, transcript)
        said = _said(problem, transcript)[: game.moves]
        form = sum(self._dialect.well_formed(text, self._rules) for text in said) / len(said) if said else 0.0
        return Judgement(
            rules_of_game.reward_terms(game, form=form),
            solved=game.solved,
            facts={"guesses": float(len(game.guessed)), "invalid_moves": float(len(game.refusals))},
        )

    def game(self, problem: Problem, transcript: Transcript) -> Game:
        """The game of an episode as far as it went."""
        guesses = (self._dialect.guess(text) for text in _said(problem, transcript))
        return rules_of_game.played(self._rules, problem.facts["secret"], guesses)

    def demonstration(self, problem: Problem, seed: int) -> Transcript:
        """A game of the expert: any word that fits all answers so far."""
        return self._played_by(players.expert, problem, seed)

    def attempt(self, problem: Problem, seed: int) -> Transcript:
        """A game of the novice: any word that was not guessed yet."""
        return self._played_by(players.novice, problem, seed)

    def _named(self, prefix: str, secrets: Sequence[str]) -> tuple[Problem, ...]:
        opening = self._dialect.opening(self._rules)
        return tuple(Problem(f"{prefix}:{secret}", opening, {"secret": secret}) for secret in secrets)

    def _played_by(self, player: players.Player, problem: Problem, seed: int) -> Transcript:
        draws = seeding.generator(seed, "demonstration")
        game = Game(self._rules, problem.facts["secret"])
        transcript = list(problem.opening)
        while not game.over:
            word = player(self.words, game, draws)
            game = game.after(word)
            transcript.append(Message("assistant", self._dialect.spoken(word)))
            if not game.over:
                transcript.append(Message("user", self._dialect.answer(game)))
        return tuple(transcript)


def _said(problem: Problem, transcript: Transcript) -> list[str]:
    """The player's messages."""
    return [message.content for message in transcript[len(problem.opening) :] if message.role == "assistant"]


def _check(*, words: int, most: int, guesses: int | None, dialect: str, held_out: float) -> None:
    if dialect not in DIALECTS:
        meant = nearest(dialect, DIALECTS)
        raise ConfigError(
            f"Wordle is not played in the dialect {dialect!r}",
            known=", ".join(DIALECTS),
            fix=f'set dialect = "{meant or "brief"}"',
        )
    if not 2 <= words <= most:
        raise ConfigError(
            "Wordle has not so many words, or too few for a game", words=words, fix=f"set words from 2 to {most}"
        )
    if guesses is not None and not 1 <= guesses < words + 1:
        raise ConfigError(
            "Wordle needs from one guess to as many as there are words",
            guesses=guesses,
            words=words,
            fix="leave guesses away, which gives one more than letters",
        )
    if not 0.0 <= held_out < 1.0:
        raise ConfigError(
            "held_out is the share of words that are not trained on", held_out=held_out, fix="set it from 0 to below 1"
        )
