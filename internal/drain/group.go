package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// maxNames bounds how many names a group prints.
const maxNames = 3

// A Group is the blockers of one kind with the same reason, for people to read.
type Group struct {
	// Kind and Reason of all of them.
	Kind, Reason string
	// Names in the order of the blockers.
	Names []string
	// Since is when the first of them was seen.
	Since metav1.Time
	// Remedies without duplicates, each with its names.
	Remedies []Remedy
}

// Remedy is what a person can do about some of a group.
type Remedy struct {
	// Names it is for.
	Names []string
	// Text of it.
	Text string
}

// Groups groups blockers by kind and reason, in the order in which they first appear.
func Groups(blockers []v1alpha1.Blocker) []Group {
	var groups []Group
	for _, b := range blockers {
		at := slices.IndexFunc(groups, func(g Group) bool { return g.Kind == b.Kind && g.Reason == b.Reason })
		if at < 0 {
			groups = append(groups, Group{Kind: b.Kind, Reason: b.Reason, Since: b.Since})
			at = len(groups) - 1
		}
		groups[at].add(b)
	}
	return groups
}

func (g *Group) add(b v1alpha1.Blocker) {
	g.Names = append(g.Names, b.Name)
	if b.Since.Before(&g.Since) {
		g.Since = b.Since
	}
	if b.Remedy == "" {
		return
	}
	at := slices.IndexFunc(g.Remedies, func(r Remedy) bool { return r.Text == b.Remedy })
	if at < 0 {
		g.Remedies = append(g.Remedies, Remedy{Text: b.Remedy})
		at = len(g.Remedies) - 1
	}
	g.Remedies[at].Names = append(g.Remedies[at].Names, b.Name)
}

// String returns the names and the reason: "Volume v: LastCopy", or "10 Deployments AwaitingClaim (p15, p2, p20 and 7 more)".
func (g Group) String() string {
	if len(g.Names) == 1 {
		return fmt.Sprintf("%s %s: %s", g.Kind, g.Names[0], g.Reason)
	}
	return fmt.Sprintf("%d %ss %s (%s)", len(g.Names), g.Kind, g.Reason, some(g.Names))
}

// Advice returns the remedies, one a line. A remedy that is not for the whole group names the objects it is for.
func (g Group) Advice() []string {
	var lines []string
	for _, r := range g.Remedies {
		if len(r.Names) == len(g.Names) {
			lines = append(lines, r.Text)
			continue
		}
		lines = append(lines, some(r.Names)+": "+r.Text)
	}
	return lines
}

// some names the first few.
func some(names []string) string {
	if len(names) <= maxNames+1 { // "and 1 more" is no shorter than the name
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

// sentence describes what blocks the drain, for how long, and what to do.
func (g Group) sentence(now time.Time) string {
	var b strings.Builder
	since := now.Sub(g.Since.Time).Round(time.Second)
	if len(g.Names) == 1 {
		fmt.Fprintf(&b, "%s %s blocks the drain: %s, for %s", g.Kind, g.Names[0], g.Reason, since)
	} else {
		fmt.Fprintf(&b, "%d %ss block the drain: %s (%s), for up to %s", len(g.Names), g.Kind, g.Reason, some(g.Names), since)
	}
	for _, advice := range g.Advice() {
		b.WriteString("; " + advice)
	}
	return strings.TrimSuffix(b.String(), ".") + ".\n"
}
