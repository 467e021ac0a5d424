// Package shim runs one program for a node in a small separate process that kills the program at a deadline: when the node's lease is no
// longer renewed, the program is dead by its deadline, whatever happened to the node.
//
// A node calls [Start], which spawns "ebb shim DIR" detached from it. The shim starts the program in a session of
// its own, writes its output to a rotated log, and keeps a [Deadline] on CLOCK_BOOTTIME that the node moves forward
// with [Handle.Extend] at each renewal. At Deadline.TermAt the program is asked to end, at Deadline.KillAt everything
// it started is killed. A node that restarts finds its programs again with [Attach].
//
//	Starting ──► Running ──► Stopping ──► Exited
//	    │                                   ▲
//	    └──────── could not start ──────────┘
//
// A program is Stopping from the first reason to end (its own exit, a Stop, the deadline) until none of its processes is left; only then
// is it Exited, and the directory can be used again. The shim is a child subreaper, so that every process that the program starts stays
// its descendant, whatever it forks and whichever session it creates. So when wait(2) finds no child any more, no process is left.
//
// The instance directory holds spec.json (what to run), lock (held for the life of the shim), sock (the shim's
// socket), state.json (the state, for a node that comes back after both died) and shim.log (the shim's own errors). Killing never waits
// for a disk: at a deadline the signals are sent first, and the state is written after that.
//
// A program has a PID namespace of its own, whose init ("ebb shim --init") the kernel kills with the shim, and every other process of the
// namespace with the init. Where the machine allows no such namespace ([ProbeNamespaces]), a killed shim takes only the main process with
// it, and the next [Start], [Attach] or [Sweep] finds what else is left by the marker that every process of the program carries in its
// environment.
//
// The package imports the standard library only, and [Main] may be called before other packages are initialised: a
// shim shares its executable with everything Ebb links, and must not pay for it in memory.
package shim
