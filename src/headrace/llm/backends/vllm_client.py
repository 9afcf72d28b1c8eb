"""Completions from vLLM, and weights for it.

Tokens go in and come out through ``/inference/v1/generate``, whose answer says which weights chose which tokens. Every
label it gives is ours: `UNPROVEN` is set before anything is loaded, and run and number of the version only once all of it is.
So a load that failed half-way cannot lend its tokens the name of an earlier or a later version, nor can another run's: a
completion with a token that no version of this run chose is a `Failure`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from headrace.core.errors import ComponentError, ComponentStalled, StaleWeights
from headrace.llm.calls import Calls, Refused, reading
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights, ServedWeights
from headrace.llm.weights import MODEL

UNPROVEN = "unproven"
"""Label of weights that are being loaded, or of which that failed."""

RESUME_S = 10.0
"""Seconds in which a paused server has to go on, also when the time for its update is over."""

STOCK, OURS = "reload_weights", "headrace_load_weights"
"""Methods of vLLM's workers that load weights: its own, and that of `headrace.llm.backends.worker`."""

LOOK_S = 5.0
"""Seconds it has to say that it is well."""

_HEALTH = "/health"
_GENERATE = "/inference/v1/generate"
_LOST_SCORE = -9999.0  # how it writes minus infinity


class VllmGenerator:
    """`headrace.llm.messages.Generator` over vLLM. Made in the event loop in which it is used; a context manager.

    Args:
        endpoint: Root of the server, e.g. ``http://127.0.0.1:8123``.
        run_id: Whose versions it is to serve; those of another run are no versions.
        model: What it calls the model; None: it serves only one.
        server: Its id, for errors.
        loader: `OURS`, or `STOCK` for a server that was started without our extension.
        connections: Most that are open at the same time, one per request.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        run_id: str,
        model: str | None = None,
        server: str = "inference",
        loader: str = OURS,
        connections: int = 512,
    ) -> None:
        self._calls = Calls(endpoint, server, connections)
        self._run_id = run_id
        self._model = model
        self._server = server
        self._loader = loader
        self._label = UNPROVEN

    @property
    def retries(self) -> int:
        """Calls that were made again."""
        return self._calls.retries

    async def __aenter__(self) -> Self:
        await self._calls.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._calls.__aexit__(exc_type, exc, tb)

    async def wait_ready(self, timeout_s: float) -> int:
        """Wait until the server has generated a token; this run's version that it serves, -1 if it serves none.

        Raises:
            ComponentStalled: It has not within ``timeout_s`` seconds.
            ComponentError: What answers there is not vLLM, or lacks a route that is needed.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            await self._calls.patiently("GET", _HEALTH, None, deadline_s)
            await self._calls.patiently("POST", _GENERATE, self._body([0], {"max_tokens": 1}), deadline_s)
            label = str((await self._calls.patiently("GET", "/weight_info", None, deadline_s))["weight_version"])
        except TimeoutError as error:
            raise ComponentStalled(
                f"{self._server} did not generate anything within {timeout_s:g} s",
                last=str(error) or "no answer",
                fix=f"read logs/{self._server}.log; raise deadlines.start_s if it is only slow",
            ) from error
        except Refused as refused:
            raise self._calls.error(
                "answers, and lacks a route that training needs",
                answer=str(refused),
                needs="vLLM 0.32 or newer with --enable-scale-out and VLLM_SERVER_DEV_MODE=1",
            ) from refused
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            raise self._calls.error(
                "answers with something else than vLLM does", error=f"{type(error).__name__}: {error}"
            ) from error
        self._label = label
        return _number(label, self._run_id)

    async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        """See `Generator.generate`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        return list(await asyncio.gather(*(self._generate(request, deadline_s) for request in requests)))

    async def update_weights(self, published: PublishedWeights, timeout_s: float) -> ServedWeights:
        """See `Generator.update_weights`. vLLM cannot tell a sum over what it has in memory: it is left empty.

        One that dies is waited for, as it may be started again. Running requests are held meanwhile; what was computed for their tokens is dropped and computed again by the new
        weights, so that later tokens are those of the new version throughout.

        Raises:
            StaleWeights: It does not say afterwards that it serves this version.
            ComponentStalled: It did not answer in time.
            ComponentError: It refused, cannot load the file, or stays paused.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                return await self._update(published, deadline_s)
            except ComponentStalled:
                raise
            except ComponentError:
                if await self._is_well(deadline_s):
                    raise
            await self._until_well(deadline_s, f"come back to load version {published.version}")

    async def _update(self, published: PublishedWeights, deadline_s: float) -> ServedWeights:
        """One try."""
        loop = asyncio.get_running_loop()
        label = _label(self._run_id, published.version)

        async def ask(method: str, route: str, body: Any, what: str) -> Any:
            return await self._calls.ask(method, route, body, max(0.0, deadline_s - loop.time()), what)

        try:
            await ask("POST", "/pause?mode=keep", None, "pause for new weights")
            await ask("POST", "/update_weight_version", {"new_version": UNPROVEN}, "forget its version")
            await self._load(published, max(0.0, deadline_s - loop.time()))
            reset = await ask("POST", "/reset_prefix_cache?reset_running_requests=true", None, "empty its cache")
            if reset != {"success": True}:
                raise self._calls.error("kept what it had computed with the old weights", answer=str(reset)[:200])
            await ask("POST", "/update_weight_version", {"new_version": label}, "note its version")
        except BaseException:
            with contextlib.suppress(ComponentError):  # the first reason is the one to tell
                await self._resume()
            raise
        await self._resume()
        paused = await ask("GET", "/is_paused", None, "say whether it is paused")
        if paused != {"is_paused": False}:
            raise self._calls.error("was told to go on, and is paused still", answer=str(paused)[:200])
        told = await ask("GET", "/weight_info", None, "say what it serves")
        if told != {"weight_version": label}:
            raise StaleWeights(
                f"{self._server} was given version {published.version} and says that it serves another",
                answer=str(told)[:200],
                folder=published.folder,
                fix="let nobody else update this server",
            )
        self._label = label
        return ServedWeights(version=published.version, sha256="")

    async def score(self, token_ids: Sequence[int], timeout_s: float) -> tuple[float, ...]:
        """See `Generator.score`."""
        body = self._body(token_ids, {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False})
        answer = await self._calls.ask("POST", _GENERATE, body, timeout_s, "score the probe")
        try:
            with reading():
                return _scores(answer, token_ids)
        except ValueError as error:
            raise self._calls.error(
                "answered without log-probabilities of the prompt", error=f"{type(error).__name__}: {error}"
            ) from error

    async def label(self, version: int, timeout_s: float) -> None:
        """Have it call the weights that it has loaded from ``version``'s folder by this run and that number.

        Raises:
            ComponentError: It refused, did not answer in time, or is gone.
        """
        label = _label(self._run_id, version)
        await self._calls.ask("POST", "/update_weight_version", {"new_version": label}, timeout_s, "note its version")
        self._label = label

    async def _is_well(self, deadline_s: float) -> bool:
        """Whether it says that its engine lives; one whose engine has died answers anything with errors until it ends."""
        left_s = deadline_s - asyncio.get_running_loop().time()
        try:
            await self._calls.ask("GET", _HEALTH, None, min(LOOK_S, max(0.0, left_s)), "say whether it is well")
        except ComponentError:
            return False
        return True

    async def _until_well(self, deadline_s: float, what: str) -> None:
        try:
            await self._calls.patiently("GET", _HEALTH, None, deadline_s)
        except (TimeoutError, Refused, aiohttp.ClientError, OSError, ValueError) as error:
            raise ComponentStalled(
                f"{self._server} died and did not {what} in time",
                last=f"{type(error).__name__}: {error}",
                fix=f"read logs/{self._server}.log; raise deadlines.weights_s if it starts slowly",
            ) from error

    async def _resume(self) -> None:
        await self._calls.ask("POST", "/resume", None, RESUME_S, "go on after its weights were updated")

    async def _load(self, published: PublishedWeights, timeout_s: float) -> None:
        file = published.folder / MODEL
        if self._loader == STOCK:
            call: dict[str, Any] = {"method": STOCK, "kwargs": {"weights_path": str(published.folder)}}
        else:
            call = {"method": self._loader, "args": [str(file), published.sha256]}
        answer = await self._calls.ask(
            "POST", "/collective_rpc", call, timeout_s, f"load version {published.version} by {self._loader}"
        )
        try:
            with reading():
                results = [result for result in answer["results"] if isinstance(result, dict)]
        except ValueError as error:
            raise self._calls.error("did not say whether it loaded them", answer=str(answer)[:200]) from error
        problems = [result["error"] for result in results if "error" in result]
        if problems:
            raise self._calls.error(f"could not load version {published.version}", file=file, problem=problems[0])

    async def _generate(self, request: GenerationRequest, deadline_s: float) -> Completion | Failure:
        try:
            while True:
                try:
                    answer = await self._calls.patiently("POST", _GENERATE, self._asked(request), deadline_s)
                    with reading():
                        return _completion(answer, request, self._run_id)
                except Refused as refused:
                    lasting = 400 <= refused.status < 500
                    if lasting or await self._is_well(deadline_s):
                        return Failure("refused" if lasting else "server", str(refused), may_retry=not lasting)
                await self._calls.patiently("GET", _HEALTH, None, deadline_s)
        except TimeoutError as error:
            return Failure("timeout", f"{self._server} gave no answer in time: {error}", may_retry=False)
        except (aiohttp.ClientError, OSError) as error:
            return Failure("connection", f"{type(error).__name__}: {error}")
        except ValueError as error:
            return Failure("malformed", f"{self._server}: {type(error).__name__}: {error}")

    def _asked(self, request: GenerationRequest) -> dict[str, Any]:
        sampling = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,  # it ends with what the request names, and nothing else
            "logprobs": 0,  # of the chosen token alone
            "detokenize": False,
        }
        return self._body(request.prompt_ids, sampling)

    def _body(self, token_ids: Sequence[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        # What was computed for a prompt belongs to the weights it was computed with.
        return {
            "token_ids": list(token_ids),
            "sampling_params": dict(sampling),
            "cache_salt": f"version {self._label}",
        } | ({} if self._model is None else {"model": self._model})


def _completion(answer: Mapping[str, Any], request: GenerationRequest, run_id: str) -> Completion | Failure:
    """What an answer holds.

    Raises:
        Exception: Of any kind; it does not say of every token what it has to.
    """
    (choice,) = answer["choices"]
    tokens = [int(token) for token in choice["token_ids"]]
    content = choice["logprobs"]["content"]
    if [int(one["token_id"]) for one in content] != tokens:
        raise ValueError(f"log-probabilities of {len(content)} tokens come with {len(tokens)} other ones")
    if not 0 < len(tokens) <= request.max_tokens:
        raise ValueError(f"{len(tokens)} tokens where 1 to {request.max_tokens} were asked for")
    ended = choice["finish_reason"]
    if ended not in {"stop", "length"}:
        return Failure("server", f"the completion ended by {ended!r}")
    if (ended == "stop") != (tokens[-1] in request.stop_ids):
        raise ValueError(f"it ended by {ended!r} with token {tokens[-1]}")
    versions = _versions(choice["weight_versions"] or [], len(tokens), run_id)
    if min(versions) < 0:
        return Failure(
            "unversioned",
            "some tokens were chosen while weights were loaded, or by weights that are no version of this run",
        )
    return Completion(
        token_ids=tuple(tokens),
        logprobs=tuple(float(one["logprob"]) for one in content),
        versions=versions,
        finish_reason=ended,
    )


def _versions(spans: Sequence[Mapping[str, Any]], tokens: int, run_id: str) -> tuple[int, ...]:
    """Of each token; -1 where none of this run is known."""
    found = [-1] * tokens
    for span in spans:
        for index in range(int(span["start"]), min(int(span["end"]), tokens)):
            found[index] = _number(str(span["version"]), run_id)
    return tuple(found)


def _label(run_id: str, version: int) -> str:
    """What a server is to call these weights: a number alone would be that of any run."""
    return f"{run_id}:{version}"


def _number(label: str, run_id: str) -> int:
    """The version of this run; -1: it is none."""
    whose, _, number = label.rpartition(":")
    return int(number) if whose == run_id and number.isdecimal() else -1


def _scores(answer: Mapping[str, Any], token_ids: Sequence[int]) -> tuple[float, ...]:
    told = answer["prompt_logprobs"][1:]  # the first token follows none
    if len(told) != len(token_ids) - 1:
        raise ValueError(f"{len(told)} of them for {len(token_ids)} tokens")
    found = [float(one[str(token)]["logprob"]) for one, token in zip(told, token_ids[1:], strict=True)]
    return tuple(float("-inf") if value <= _LOST_SCORE else value for value in found)
