/**
 * When to dial, how long to wait, and when to give up: decisions only.
 *
 * Events and the time (milliseconds) enter through `handle*`; actions and the next timeout leave
 * through `poll*`. This module knows no socket, clock or session.
 */

/** How a lost connection is recovered; times are in milliseconds. */
export interface RecoveryPolicy {
  /** How long to try after the loss. By default a server keeps a session for 30 s. */
  deadline: number;
  /**
   * The pause after the first failed attempt. It doubles with each further one, up to
   * `longestPause`. The first attempt is immediate, unless the connection lived for less than this.
   */
  firstPause: number;
  longestPause: number;
  /** How long one attempt to reconnect may take, from dialling to the response to `initialize`. */
  attempt: number;
}

export const DEFAULT_RECOVERY: RecoveryPolicy = {
  deadline: 25_000,
  firstPause: 100,
  longestPause: 2_000,
  attempt: 5_000,
};

/** Numbers the attempts to connect. Events of earlier ones are ignored. */
export type Generation = number;

export type Action =
  | { type: "dial"; generation: Generation }
  /** Close this connection, or give up the attempt. */
  | { type: "hangUp"; generation: Generation }
  /** The session is back: ask what each process has missed. */
  | { type: "catchUp"; generation: Generation }
  /** Let calls through. */
  | { type: "admit"; generation: Generation }
  | { type: "giveUp"; reason: GiveUpReason };

export type GiveUpReason = "neverConnected" | "deadline" | "permanent";

type Step =
  | { type: "pausing"; until: number }
  | { type: "attempting"; until: number }
  /** In this step, only the policy's deadline applies: a slow link is no reason to start over. */
  | { type: "catchingUp" };

type State =
  | { type: "opening"; until: number }
  | { type: "connected"; since: number }
  | { type: "recovering"; since: number; failed: number; step: Step }
  | { type: "givenUp" };

export class Recovery {
  #generation: Generation = 1;
  #state: State;
  readonly #actions: Action[] = [{ type: "dial", generation: 1 }];

  /**
   * Begins with the first attempt. `random` returns a number from 0 to 1 and decides the jitter.
   */
  constructor(
    readonly policy: RecoveryPolicy,
    firstAttempt: number,
    now: number,
    private readonly random: () => number,
  ) {
    this.#state = { type: "opening", until: now + firstAttempt };
  }

  get connected(): boolean {
    return this.#state.type === "connected";
  }

  get generation(): Generation {
    return this.#generation;
  }

  /**
   * When the connection was lost, and how many attempts have failed since, counting a connection
   * that was lost at once.
   */
  get recovering(): { since: number; failed: number } | null {
    return this.#state.type === "recovering"
      ? { since: this.#state.since, failed: this.#state.failed }
      : null;
  }

  /** A connection ended, or the attempt to make one failed. */
  handleLost(generation: Generation, permanent: boolean, now: number): void {
    const state = this.#state;
    if (generation !== this.#generation || state.type === "givenUp") return;
    if (state.type === "opening") return this.#giveUp("neverConnected");
    if (permanent) return this.#giveUp("permanent");
    if (state.type === "connected") {
      // A server that accepts and drops connections is not dialled as fast as possible.
      if (now < state.since + this.policy.firstPause) return this.#pause(now, 0, now);
      this.#state = { type: "recovering", since: now, failed: 0, step: this.#attempt(now) };
    } else if (state.step.type !== "pausing") {
      this.#pause(state.since, state.failed, now);
    }
  }

  /** The server answered `initialize`. */
  handleInitialized(generation: Generation, now: number): void {
    const state = this.#state;
    if (generation !== this.#generation) return;
    if (state.type === "opening") {
      this.#state = { type: "connected", since: now };
      this.#actions.push({ type: "admit", generation });
    } else if (state.type === "recovering" && state.step.type === "attempting") {
      this.#state = { ...state, step: { type: "catchingUp" } };
      this.#actions.push({ type: "catchUp", generation });
    }
  }

  /** The missed events of every process are known. */
  handleCaughtUp(generation: Generation, now: number): void {
    const state = this.#state;
    const catchingUp = state.type === "recovering" && state.step.type === "catchingUp";
    if (generation !== this.#generation || !catchingUp) return;
    this.#state = { type: "connected", since: now };
    this.#actions.push({ type: "admit", generation });
  }

  handleTimeout(now: number): void {
    const state = this.#state;
    if (state.type === "opening" && now >= state.until) {
      this.#actions.push({ type: "hangUp", generation: this.#generation });
      this.#giveUp("neverConnected");
    } else if (state.type === "recovering") {
      if (now >= state.since + this.policy.deadline) return this.#giveUp("deadline");
      const { step } = state;
      if (step.type === "pausing" && now >= step.until) {
        this.#state = { ...state, step: this.#attempt(now) };
      } else if (step.type === "attempting" && now >= step.until) {
        this.#actions.push({ type: "hangUp", generation: this.#generation });
        this.#pause(state.since, state.failed, now);
      }
    }
  }

  /** When `handleTimeout` should be called; null: not at all. */
  pollTimeout(): number | null {
    const state = this.#state;
    if (state.type === "opening") return state.until;
    if (state.type !== "recovering") return null;
    const deadline = state.since + this.policy.deadline;
    return state.step.type === "catchingUp" ? deadline : Math.min(deadline, state.step.until);
  }

  pollAction(): Action | undefined {
    return this.#actions.shift();
  }

  #attempt(now: number): Step {
    this.#generation += 1;
    this.#actions.push({ type: "dial", generation: this.#generation });
    return { type: "attempting", until: now + this.policy.attempt };
  }

  /**
   * Waits between half of the pause and all of it, so that clients that lost the same server do not
   * return together.
   */
  #pause(since: number, failed: number, now: number): void {
    const longest = Math.min(this.policy.firstPause * 2 ** failed, this.policy.longestPause);
    const until = now + longest * (0.5 + 0.5 * this.random());
    this.#state = {
      type: "recovering",
      since,
      failed: failed + 1,
      step: { type: "pausing", until },
    };
  }

  #giveUp(reason: GiveUpReason): void {
    this.#state = { type: "givenUp" };
    this.#actions.push({ type: "giveUp", reason });
  }
}
