/** Node's names of signals, and the protocol's. */

import type { SignalName as WireSignal } from "./generated.js";

const WIRE = {
  SIGINT: "interrupt",
  SIGTERM: "terminate",
  SIGKILL: "kill",
  SIGHUP: "hangup",
  SIGQUIT: "quit",
  SIGUSR1: "user1",
  SIGUSR2: "user2",
  SIGSTOP: "stop",
  SIGCONT: "continue",
} as const;

export type SignalName = keyof typeof WIRE | WireSignal;

export function wireSignal(name: SignalName): WireSignal {
  return name in WIRE ? WIRE[name as keyof typeof WIRE] : (name as WireSignal);
}
