// Package slurm drains nodes of a Slurm cluster. It serves SlurmDrainRequests, which Ebb creates from a template when a node has to be
// emptied, and is the reference of what the controller of a custom drain does.
package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Errors of Slurm.
var (
	// ErrUnreachable: slurmctld does not answer. Nothing is known, and nothing is complete.
	ErrUnreachable = errors.New("slurmctld does not answer")
	// ErrUnknownNode: Slurm has no node of that name.
	ErrUnknownNode = errors.New("Slurm has no such node")
)

// commandTimeout bounds one command.
const commandTimeout = 15 * time.Second

// Commands talks to Slurm by its own commands.
type Commands struct {
	// Conf is the file slurm.conf; empty for the default one.
	Conf string
	// Dir is where the commands are; empty to search the path.
	Dir string
}

// Node is what Slurm says of a node.
type Node struct {
	// Drain says that the node takes no new jobs.
	Drain bool
	// Busy says that something is allocated on it, or completing.
	Busy bool
	// State and Reason are in Slurm's words.
	State, Reason string
}

const reasonEnd = ` \[[^\]\s]+@\d{4}-\d\d-\d\dT[\d:]+\]`

var (
	// nameField and stateField are in the line of scontrol before the reason, which may contain anything. The reason ends with who set it, and when.
	nameField   = regexp.MustCompile(`^NodeName=(\S+) `)
	stateField  = regexp.MustCompile(` State=(\S+)`)
	reasonField = regexp.MustCompile(` Reason=(.*)` + reasonEnd)
	// ourField is a reason of ours, which contains no brackets: what looks like the end of a reason after it is in the comment.
	ourField = regexp.MustCompile(` Reason=(` + reasonPrefix + `\S+)` + reasonEnd)
	// busy are parts of states with which something may run on the node. A node that has not registered since slurmctld started is UNKNOWN.
	busy = []string{"ALLOCATED", "MIXED", "COMPLETING", "UNKNOWN"}
)

// Nodes reads the state of all nodes, also of those in hidden partitions, by name. A command that fails says nothing about any of them.
func (c Commands) Nodes(ctx context.Context) (map[string]Node, error) {
	if _, err := c.start(ctx, "scontrol", "ping"); err != nil { // the other commands would try for long
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	out, err := c.run(ctx, "scontrol", "--all", "--oneliner", "show", "node")
	if err != nil {
		return nil, err
	}
	return ParseNodes(out)
}

// Node reads the state of one node.
func (c Commands) Node(ctx context.Context, name string) (Node, error) {
	out, err := c.run(ctx, "scontrol", "--all", "--oneliner", "show", "node", name)
	if err != nil {
		return Node{}, err
	}
	nodes, err := ParseNodes(out)
	if err != nil {
		return Node{}, err
	}
	n, ok := nodes[name]
	if !ok {
		return Node{}, fmt.Errorf("%w: %s", ErrUnknownNode, name)
	}
	return n, nil
}

// ParseNodes reads what scontrol shows, one node on a line. The comment of a node, which comes last, may break the line.
func ParseNodes(out string) (map[string]Node, error) {
	nodes := map[string]Node{}
	for line := range strings.Lines(out) {
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "No nodes in the system") {
			continue
		}
		name, state := nameField.FindStringSubmatch(line), stateField.FindStringSubmatch(line)
		switch {
		case name == nil && len(nodes) > 0:
			continue // more of a comment
		case name == nil || state == nil:
			return nil, fmt.Errorf("scontrol shows a node without name or state: %q", line)
		}
		if _, twice := nodes[name[1]]; twice {
			return nil, fmt.Errorf("scontrol shows node %s twice: look for its name in the comments of nodes", name[1])
		}
		n := Node{State: state[1]}
		for _, field := range []*regexp.Regexp{reasonField, ourField} {
			if reason := field.FindStringSubmatch(line); reason != nil {
				n.Reason = reason[1]
			}
		}
		for part := range strings.SplitSeq(n.State, "+") {
			part = strings.TrimRight(part, "*~#!%$@^-") // marks of nodes that do not answer, boot and the like
			n.Drain = n.Drain || part == "DRAIN"
			n.Busy = n.Busy || slices.Contains(busy, part)
		}
		nodes[name[1]] = n
	}
	return nodes, nil
}

// Jobs are the jobs on a node, also those of hidden partitions. A command that fails is an error, and not an empty list.
func (c Commands) Jobs(ctx context.Context, name string) ([]string, error) {
	out, err := c.run(ctx, "squeue", "-h", "-a", "-w", name, "-o", "%i")
	return strings.Fields(out), err
}

// Drain keeps new jobs away from a node.
func (c Commands) Drain(ctx context.Context, name, reason string) error {
	_, err := c.run(ctx, "scontrol", "update", "nodename="+name, "state=drain", "reason="+reason)
	return err
}

// Resume lets a node take jobs again.
func (c Commands) Resume(ctx context.Context, name string) error {
	_, err := c.run(ctx, "scontrol", "update", "nodename="+name, "state=resume")
	return err
}

// run runs a command of Slurm, and finds out after a failure whether slurmctld is there.
func (c Commands) run(ctx context.Context, command string, args ...string) (string, error) {
	out, err := c.start(ctx, command, args...)
	if err == nil {
		return out, nil
	}
	if _, down := c.start(ctx, "scontrol", "ping"); down != nil {
		return "", fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return "", err
}

func (c Commands) start(ctx context.Context, command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	path := command
	if c.Dir != "" {
		path = c.Dir + "/" + command
	}
	cmd := exec.CommandContext(ctx, path, args...)
	if c.Conf != "" {
		cmd.Env = append(os.Environ(), "SLURM_CONF="+c.Conf)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", command, strings.Join(args, " "), err, strings.TrimSpace(errs.String()+string(out))) // scontrol complains on its standard output
	}
	return string(out), nil
}
