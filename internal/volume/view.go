package volume

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// View is a volume with its replicas, as people see it.
type View struct {
	Namespace  string                    `json:"namespace"`
	Name       string                    `json:"name"`
	SizeBytes  int64                     `json:"sizeBytes"`
	Robustness v1alpha1.VolumeRobustness `json:"robustness"`
	AttachTo   string                    `json:"attachTo,omitempty"`
	AttachedTo string                    `json:"attachedTo,omitempty"`
	Serving    bool                      `json:"serving"`
	URI        string                    `json:"nbdURI,omitempty"`
	Generation int64                     `json:"generation"`
	Clients    []string                  `json:"clients"`
	WaitingFor string                    `json:"waitingFor,omitempty"`
	Replicas   []ReplicaView             `json:"replicas"`
	Wanted     int32                     `json:"wantedReplicas"`
	Notes      []string                  `json:"notes"`
}

// ReplicaView is one replica, as people see it.
type ReplicaView struct {
	Name     string                  `json:"name"`
	Node     string                  `json:"node"`
	Disk     string                  `json:"disk"`
	State    string                  `json:"state"`
	Evicting bool                    `json:"evicting,omitempty"`
	Rebuild  *v1alpha1.VolumeRebuild `json:"rebuild,omitempty"`
	Message  string                  `json:"message,omitempty"`

	left time.Duration // until it is built; 0 if that is not known
}

// States of replicas as people see them.
const (
	ReplicaHealthy    = "healthy"
	ReplicaRebuilding = "rebuilding"
	ReplicaWaiting    = "waiting"
	ReplicaFailed     = "failed"
	ReplicaLeaving    = "leaving"
)

// Views brings volumes and replicas together, sorted by name.
func Views(volumes []v1alpha1.Volume, replicas []v1alpha1.Replica, now time.Time) []View {
	list := []View{}
	for i := range volumes {
		v := &volumes[i]
		var mine []*v1alpha1.Replica
		for j := range replicas {
			if replicas[j].Spec.VolumeUID == string(v.UID) {
				mine = append(mine, &replicas[j])
			}
		}
		list = append(list, viewOf(v, mine, now))
	}
	slices.SortFunc(list, func(a, b View) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list
}

func viewOf(v *v1alpha1.Volume, replicas []*v1alpha1.Replica, now time.Time) View {
	view := View{
		Namespace: v.Namespace, Name: v.Name, SizeBytes: v.Spec.Size.Value(), Robustness: cmp.Or(v.Status.Robustness, v1alpha1.VolumeUnknown), AttachTo: v.Spec.AttachTo,
		AttachedTo: v.Status.AttachedTo, URI: v.Status.NBDURI, Generation: v.Status.Generation, Wanted: v.Spec.Replicas, Clients: []string{}, Replicas: []ReplicaView{}, Notes: []string{},
	}
	if e := v.Status.Engine; e != nil {
		view.Serving, view.WaitingFor = e.Serving, e.WaitingFor
		view.Clients = append(view.Clients, e.ClientNames...)
	}
	for _, r := range replicas {
		view.Replicas = append(view.Replicas, replicaView(v, r, now))
	}
	slices.SortFunc(view.Replicas, func(a, b ReplicaView) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Name, b.Name))
	})
	for _, c := range v.Status.Conditions {
		// A detached volume needs no note. The condition Attached already has why an engine does not serve yet, and is out of date once it
		// serves.
		stale := view.Serving && c.Type == v1alpha1.VolumeAttached
		if c.Status == "False" && !stale && c.Reason != v1alpha1.ReasonDetached && c.Reason != v1alpha1.ReasonMembersMissing {
			view.Notes = append(view.Notes, c.Message)
		}
	}
	slices.Sort(view.Notes)
	return view
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": waiting for " + why
}

func replicaView(v *v1alpha1.Volume, r *v1alpha1.Replica, now time.Time) ReplicaView {
	view := ReplicaView{Name: r.Name, Node: r.Spec.NodeName, Disk: r.Spec.Disk, State: ReplicaWaiting, Evicting: r.Spec.EvictionRequested, Message: r.Status.Message}
	if v.Status.Engine != nil {
		for i := range v.Status.Engine.Rebuilds {
			if b := &v.Status.Engine.Rebuilds[i]; b.Replica == r.Name {
				view.Rebuild, view.left = b, timeLeft(b, now)
				view.Message = cmp.Or(view.Message, b.Error)
			}
		}
	}
	switch {
	case r.DeletionTimestamp != nil:
		view.State = ReplicaLeaving
	case r.Status.State == v1alpha1.ReplicaFailed:
		view.State = ReplicaFailed
	case slices.Contains(v.Status.Members, r.Name):
		view.State = ReplicaHealthy
	case view.Rebuild != nil && view.Rebuild.Error == "":
		view.State = ReplicaRebuilding
	case r.Status.FailedAt != nil:
		view.State = ReplicaFailed
	}
	return view
}

// timeLeft estimates when a rebuild is done from how fast it has been so far.
func timeLeft(b *v1alpha1.VolumeRebuild, now time.Time) time.Duration {
	took := now.Sub(b.StartedAt.Time)
	if b.DoneBytes <= 0 || took <= 0 || b.DoneBytes >= b.TotalBytes {
		return 0
	}
	return time.Duration(float64(took) * float64(b.TotalBytes-b.DoneBytes) / float64(b.DoneBytes))
}

// Table shows volumes to people.
func Table(views []View) string {
	if len(views) == 0 {
		return "no volumes\n"
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "VOLUME\tSIZE\tROBUSTNESS\tATTACHED TO\tREPLICAS\tNOTE")
	for _, v := range views {
		attached := cmp.Or(v.AttachedTo, "-")
		var parts []string
		for _, r := range v.Replicas {
			parts = append(parts, r.short())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", kind.NameIn(v.Namespace, v.Name), humanize.IBytes(uint64(v.SizeBytes)), v.Robustness, attached, cmp.Or(strings.Join(parts, ", "), "-"), v.shortNote())
	}
	_ = w.Flush() // a Builder takes everything
	return trimmed(text.String())
}

// maxNote bounds the length of a volume's note in a table.
const maxNote = 120

// shortNote is the note of a volume in a table.
func (v View) shortNote() string {
	note := []rune(kind.OneLine(strings.Join(v.Notes, "; ")))
	if len(note) <= maxNote {
		return string(note)
	}
	return fmt.Sprintf("%s… (`ebb volume inspect %s`)", strings.TrimSpace(string(note[:maxNote])), Argument(v.Namespace, v.Name))
}

// Argument is the name of a volume or a replica as an argument of a command, with the flag for its namespace.
func Argument(namespace, name string) string {
	if namespace == kind.DefaultNamespace {
		return name
	}
	return name + " -n " + namespace
}

// trimmed is a text without spaces at the ends of lines.
func trimmed(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// short is a replica in a word or two, such as "n2" for a healthy one.
func (r ReplicaView) short() string {
	text := r.Node
	switch {
	case r.State == ReplicaRebuilding:
		text += " " + r.progress()
	case r.State != ReplicaHealthy:
		text += " " + r.State
	}
	if r.Evicting {
		text += " evicting"
	}
	return text
}

func (r ReplicaView) progress() string {
	text := "rebuilding"
	if r.Rebuild != nil && r.Rebuild.TotalBytes > 0 {
		text = fmt.Sprintf("rebuilding %d%%", 100*r.Rebuild.DoneBytes/r.Rebuild.TotalBytes)
	}
	if r.left > 0 {
		text += ", " + duration.HumanDuration(r.left) + " left"
	}
	return text
}

// Text shows one volume to people, with everything that is known.
func (v View) Text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "volume %s: %s, %s, generation %d\n", kind.NameIn(v.Namespace, v.Name), humanize.IBytes(uint64(v.SizeBytes)), v.Robustness, v.Generation)
	switch {
	case v.Serving:
		fmt.Fprintf(&text, "attached to %s: %s\n", v.AttachedTo, v.URI)
	case v.AttachedTo != "":
		fmt.Fprintf(&text, "being attached to %s%s\n", v.AttachedTo, because(v.WaitingFor))
	default:
		fmt.Fprintln(&text, "detached")
	}
	for _, c := range v.Clients {
		fmt.Fprintf(&text, "client: %s\n", c)
	}
	for _, n := range v.Notes {
		fmt.Fprintf(&text, "note: %s\n", n)
	}
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\nREPLICA\tNODE\tDISK\tSTATE\tNOTE")
	for _, r := range v.Replicas {
		state := r.State
		if r.State == ReplicaRebuilding {
			state = r.progress()
		}
		if r.Evicting {
			state += ", evicting"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Name, r.Node, r.Disk, state, r.Message)
	}
	_ = w.Flush() // a Builder takes everything
	return trimmed(text.String())
}

// Salvage makes one replica the only member of a volume that cannot be opened, because a person decided that it has the best data. It changes
// the status of v.
func Salvage(v *v1alpha1.Volume, replicas []v1alpha1.Replica, name string) error {
	if e := v.Status.Engine; v.EngineNode() != "" && e != nil && e.Serving && !newerCameBack(v, e, replicas) {
		return fmt.Errorf("volume %s serves clients on %s: there is nothing to salvage", kind.NameIn(v.Namespace, v.Name), e.Node)
	}
	generation := v.Status.Generation
	var chosen *v1alpha1.Replica
	var names []string
	for i := range replicas {
		r := &replicas[i]
		if r.Spec.VolumeUID != string(v.UID) {
			continue
		}
		generation = max(generation, r.Status.Generation)
		names = append(names, fmt.Sprintf("%s (node %s, generation %d, %s)", r.Name, r.Spec.NodeName, r.Status.Generation, cmp.Or(r.Status.State, v1alpha1.ReplicaPending)))
		if r.Name == name {
			chosen = r
		}
	}
	slices.Sort(names)
	switch {
	case name == "" && len(names) == 0:
		return fmt.Errorf("volume %s has no replica to keep", kind.NameIn(v.Namespace, v.Name))
	case name == "":
		return errors.New("choose the replica to keep with --replica: " + strings.Join(names, ", "))
	case chosen == nil:
		return fmt.Errorf("volume %s has no replica %s, but %s", kind.NameIn(v.Namespace, v.Name), name, cmp.Or(strings.Join(names, ", "), "none"))
	case chosen.Status.HealthyAt == nil && chosen.Status.Generation == 0:
		return fmt.Errorf("replica %s was never healthy: it is empty", name)
	case chosen.Status.Incomplete:
		return fmt.Errorf("replica %s was never built completely: a part of the data is missing there", name)
	case chosen.Status.State != v1alpha1.ReplicaReady:
		return fmt.Errorf("replica %s is %s: %s", name, cmp.Or(chosen.Status.State, v1alpha1.ReplicaPending), cmp.Or(chosen.Status.Message, "its node has not reported it"))
	}
	v.Status.Generation, v.Status.Members, v.Status.Released = generation+1, []string{name}, nil
	return nil
}

// newerCameBack reports whether a volume that is served cannot be changed in any other way: a replica that came back knows a newer generation than the
// Volume and the engine, which opened it without that replica.
func newerCameBack(v *v1alpha1.Volume, e *v1alpha1.VolumeEngine, replicas []v1alpha1.Replica) bool {
	return e.Generation <= v.Status.Generation && slices.ContainsFunc(replicas, func(r v1alpha1.Replica) bool {
		return r.Spec.VolumeUID == string(v.UID) && r.Status.Generation > v.Status.Generation
	})
}

// Evictions returns how far the evictions of replicas from a node are, a line each; empty if none is being evicted.
func Evictions(replicas []v1alpha1.Replica, node string) string {
	var lines []string
	for i := range replicas {
		c := meta.FindStatusCondition(replicas[i].Status.Conditions, v1alpha1.ReplicaEvicting)
		if replicas[i].Spec.NodeName == node && c != nil && c.Status == metav1.ConditionTrue {
			lines = append(lines, "Eviction of "+c.Message+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
