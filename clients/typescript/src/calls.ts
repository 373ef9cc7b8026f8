/** Pending requests, and which of them are sent again after the connection was lost. */

export interface Call {
  readonly method: string;
  /** The params as JSON. */
  readonly params: string;
  /** Whether the call may be sent again if the connection is lost before the response. */
  readonly replay: boolean;
  /** How many times the connection was lost before the response. */
  losses: number;
  /** Whether the caller no longer waits for the result. */
  abandoned?: boolean;
  /** Called each time before the request is sent. */
  onSend?(): void;
  resolve(result: unknown): void;
  reject(error: Error): void;
}

/** A call fails after this many lost connections: it may be their cause. */
const MAX_LOSSES = 100;

export class PendingCalls {
  #nextId = 1;
  /** Calls without a response, in the order in which they were sent. */
  #inFlight = new Map<number, Call>();
  /** Calls to send again, in the order in which they were sent. */
  #lost: Call[] = [];

  /** Returns the text of the request. `answered` finds the call for its response. */
  send(call: Call): string {
    const id = this.#nextId++;
    this.#inFlight.set(id, call);
    return `{"id":${id},"method":${JSON.stringify(call.method)},"params":${call.params}}`;
  }

  answered(id: unknown): Call | undefined {
    const call = this.#inFlight.get(id as number);
    if (call !== undefined) this.#inFlight.delete(id as number);
    return call;
  }

  /**
   * The connection is lost. Returns the calls that cannot be sent again; the others wait for
   * `takeLost`.
   */
  lose(): Call[] {
    const failed: Call[] = [];
    for (const call of this.#inFlight.values()) {
      call.losses += 1;
      if (call.replay && call.losses < MAX_LOSSES) this.#lost.push(call);
      else failed.push(call);
    }
    this.#inFlight.clear();
    return failed;
  }

  takeLost(): Call[] {
    const lost = this.#lost.filter((call) => !call.abandoned);
    this.#lost = [];
    return lost;
  }

  /** Removes and returns all pending calls, at the end of the session. */
  takeAll(): Call[] {
    const all = [...this.#inFlight.values(), ...this.#lost];
    this.#inFlight.clear();
    this.#lost = [];
    return all;
  }
}
