// Package sqlhistory generates random histories of MariaDB statements, from a grammar of its DDL and DML, and shrinks one that fails. It
// knows nothing of changefeeds: whoever executes a history decides what it means to fail.
package sqlhistory

import (
	"fmt"
	"slices"
	"strings"
)

// Form is one form of the grammar, such as "rename: swap". Coverage is counted by it.
type Form string

// Place is where a statement is executed, or what happens instead of one.
type Place string

// The places. Everything but AtSource and AtSink stands for an event in the cluster that replicates the history.
const (
	AtSource Place = ""
	AtSink   Place = "sink"   // executed at the sink
	Wait     Place = "wait"   // until everything so far is at the sink
	Begin    Place = "begin"  // the position from which the changefeed starts, if it is not the beginning of the history
	Start    Place = "start"  // the changefeed is created here
	Pause    Place = "pause"  // the changefeed is paused
	Resume   Place = "resume" // the changefeed is resumed
	// A transaction is executed on both sides, and the changefeed skips it, or is resumed after it.
	Skip        Place = "skip"
	ResumeAfter Place = "resume after"
)

// Statement is one step of a history.
type Statement struct {
	SQL   string
	Place Place
	// Forms that it is an example of.
	Forms []Form

	apply func()
}

// The schemas of a history as they are written in its statements. Whoever executes the history replaces them, so that many
// histories can share a server.
const (
	First   = "{a}" // replicated, and exists on both sides before the history begins
	Second  = "{b}" // replicated, and does not exist at first
	Outside = "{x}" // not replicated, and exists on both sides
)

// Skipped is the prefix of tables in First that are not replicated.
const Skipped = "skip_"

// Kept are the tables outside the filter that exist at the sink before the history begins, and that no statement may change there.
var Kept = []string{Outside + ".o0", Outside + ".o1", First + "." + Skipped + "0"}

// Filter selects what is replicated.
var Filter = []string{First + ".*", Second + ".*", "!" + First + "." + Skipped + "*"}

// In replaces the schemas by those of a history with a name.
func In(text, name string) string {
	return strings.NewReplacer(First, name+"_a", Second, name+"_b", Outside, name+"_x").Replace(text)
}

// Script is a history as text that can be pasted into a client of the source, with comments for everything else.
func Script(statements []Statement, name string) string {
	var b strings.Builder
	for _, s := range statements {
		switch s.Place {
		case AtSource:
			fmt.Fprintf(&b, "%s;\n", strings.TrimSuffix(In(s.SQL, name), ";"))
		case AtSink:
			fmt.Fprintf(&b, "-- at the sink: %s;\n", In(s.SQL, name))
		default:
			fmt.Fprintf(&b, "-- %s\n", s.Place)
		}
	}
	return b.String()
}

// Parse reads a script: statements that end with a semicolon at the end of a line, "-- sink: STATEMENT;" and "-- PLACE".
func Parse(text string) ([]Statement, error) {
	var list []Statement
	var open []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch rest, event := strings.CutPrefix(line, "-- "); {
		case line == "":
		case event && len(open) == 0:
			s, err := parseEvent(rest)
			if err != nil {
				return nil, err
			}
			list = append(list, s)
		case strings.HasSuffix(line, ";"):
			open = append(open, strings.TrimSuffix(line, ";"))
			list = append(list, Statement{SQL: strings.Join(open, "\n")})
			open = nil
		default:
			open = append(open, line)
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%q does not end with a semicolon", strings.Join(open, " "))
	}
	return list, nil
}

func parseEvent(text string) (Statement, error) {
	if sql, ok := strings.CutPrefix(text, "sink: "); ok {
		return Statement{SQL: strings.TrimSuffix(sql, ";"), Place: AtSink}, nil
	}
	if place := Place(text); slices.Contains([]Place{Wait, Begin, Start, Pause, Resume, Skip, ResumeAfter}, place) {
		return Statement{Place: place}, nil
	}
	return Statement{}, fmt.Errorf("%q is neither an event nor a statement", text)
}

// FormsOf are the forms in a history, sorted and each once.
func FormsOf(statements []Statement) []Form {
	var list []Form
	for _, s := range statements {
		list = append(list, s.Forms...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
