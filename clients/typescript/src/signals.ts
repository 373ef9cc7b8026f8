/** Node's names of signals, and the protocol's. */

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

export type SignalName = keyof typeof WIRE | (typeof WIRE)[keyof typeof WIRE];

export function wireSignal(name: SignalName): string {
  return WIRE[name as keyof typeof WIRE] ?? name;
}
