/** Carries messages. Every transport has the same functions and callbacks. */

export interface Transport {
  send(text: string): void;
  /** Ends the connection. No callback is called afterwards. */
  close(): void;
}

export interface TransportEvents {
  onMessage(text: string): void;
  /** The connection ended; called at most once. */
  onClosed(reason: string): void;
}

export interface Dialer {
  /** Whether a lost connection can be dialled again. */
  readonly canRedial: boolean;
  /** Rejects with a `ConnectError`. An abort ends the attempt, and the connection that it made. */
  dial(events: TransportEvents, signal: AbortSignal): Promise<Transport>;
}
