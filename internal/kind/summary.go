package kind

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Summary is the line about one kind of work in `ebb status`.
type Summary struct {
	// Kind in the plural.
	Kind string `json:"kind"`
	// Total is how many objects there are.
	Total int `json:"total"`
	// AsTheyShouldBe says that nothing is wrong or under way with any of them.
	AsTheyShouldBe bool `json:"asTheyShouldBe"`
	// States counts them by how they are.
	States map[string]int `json:"states"`
	// Notes are about those that are not as they should be, sorted by name.
	Notes []Note `json:"notes"`

	one   string // the kind in the singular
	see   string // the command that shows more
	order []State
}

// Note says what is wrong or under way with one object.
type Note struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

// State is how an object is, in a word or two.
type State struct {
	// Name of the state.
	Name string
	// One and Many are what one object and several do, where that differs from the name.
	One, Many string
	// Rank of the state.
	Rank Rank
}

// Rank says what a state means for the line, and where in it the state is named.
type Rank int

const (
	// Good: as it usually is.
	Good Rank = iota
	// Wanted: as somebody wants it, though nothing runs.
	Wanted
	// Busy: on its way.
	Busy
	// Wrong: somebody should look at it.
	Wrong
)

// States that several kinds know.
var (
	Running  = State{Name: "running"}
	Unseen   = State{Name: "not seen by the coordinator since the last change", Rank: Busy}
	Deleting = State{Name: "being deleted", Rank: Busy}
	Failed   = State{Name: "failed", Rank: Wrong}
)

// maxNotes is how many objects a line names.
const maxNotes = 3

// maxNoteLength is how much of a message a line shows, in characters.
const maxNoteLength = 120

// NewSummary is an empty line about a kind, called one in the singular and many in the plural; see is the command that shows more.
func NewSummary(one, many, see string) *Summary {
	return &Summary{Kind: many, AsTheyShouldBe: true, States: map[string]int{}, Notes: []Note{}, one: one, see: see}
}

// Add counts an object; the message says what is wrong or under way.
func (k *Summary) Add(name string, s State, message string) {
	k.Total++
	if k.States[s.Name] == 0 {
		k.order = append(k.order, s)
	}
	k.States[s.Name]++
	if s.Rank < Busy {
		return
	}
	k.AsTheyShouldBe = false
	k.Notes = append(k.Notes, Note{Name: name, State: s.Name, Message: strings.TrimSuffix(OneLine(message), ".")})
}

// Sort makes what is shown independent of the order in which the objects were read.
func (k *Summary) Sort() {
	slices.SortFunc(k.order, func(a, b State) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(k.Notes, func(a, b Note) int { return cmp.Compare(a.Name, b.Name) })
}

// Line is what `ebb status` says of the kind. Without a coordinator nobody brings what is known up to date.
func (k *Summary) Line(coordinated bool) string {
	text := Plural(k.Total, k.one) + ": "
	if !k.AsTheyShouldBe {
		return text + k.states() + k.seeMore()
	}
	switch {
	case !coordinated && k.Total == 1:
		text += "was as it should be when a coordinator last looked"
	case !coordinated:
		text += "all were as they should be when a coordinator last looked"
	case k.Total == 1:
		text += "as it should be"
	default:
		text += "all as they should be"
	}
	for _, s := range k.order {
		if s.Rank == Wanted && k.Total == 1 {
			text += ", " + s.Name
		} else if s.Rank == Wanted {
			text += fmt.Sprintf(", %d %s", k.States[s.Name], s.Name)
		}
	}
	return text
}

// states lists how many are in each state, and of those that are not as they should be the first few by name.
func (k *Summary) states() string {
	var parts []string
	left := maxNotes
	for _, s := range k.order {
		n := k.States[s.Name]
		part := fmt.Sprintf("%d %s", n, s.words(n))
		if s.Rank >= Busy {
			part += k.named(s, &left)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func (s State) words(n int) string {
	switch {
	case n == 1 && s.One != "":
		return s.One
	case n != 1 && s.Many != "":
		return s.Many
	}
	return s.Name
}

// named names the objects in a state, as many as there is room left for.
func (k *Summary) named(s State, left *int) string {
	var names []string
	for _, n := range k.Notes {
		if n.State != s.Name || *left == 0 {
			continue
		}
		*left--
		if n.Message != "" {
			n.Name += ": " + shorten(n.Message, maxNoteLength)
		}
		names = append(names, n.Name)
	}
	more := k.States[s.Name] - len(names)
	switch {
	case len(names) == 0:
		return ""
	case more > 0:
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return " (" + strings.Join(names, "; ") + ")"
}

func (k *Summary) seeMore() string {
	if k.see == "" {
		return ""
	}
	return ", see `" + k.see + "`"
}

// shorten cuts a text that is too long for a line, after a sentence if one ends in time.
func shorten(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	cut := string(runes[:most-1])
	if end := strings.LastIndex(cut, ". "); end > 0 {
		return cut[:end]
	}
	return strings.TrimRight(cut, " ") + "…"
}

// Plural counts things in words.
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// OneLine is a text without line breaks and control characters.
func OneLine(text string) string {
	printable := func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD' // an escape sequence would reach the terminal
	}
	return strings.Join(strings.Fields(strings.Map(printable, text)), " ")
}

// NameIn is an object's name as people know it: with its namespace unless that is the default one.
func NameIn(namespace, name string) string {
	if namespace == DefaultNamespace {
		return name
	}
	return namespace + "/" + name
}

// DefaultNamespace is the namespace of objects for which nobody named one.
const DefaultNamespace = "default"
