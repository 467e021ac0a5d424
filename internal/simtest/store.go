package simtest

import (
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// Object is what a Store needs of an object.
type Object interface {
	GetUID() types.UID
	GetResourceVersion() string
	SetResourceVersion(string)
}

// Revisions numbers the versions of all objects of a play, as the API server does.
type Revisions struct{ last int }

// Stamp gives an object the next resourceVersion.
func (r *Revisions) Stamp(o Object) {
	r.last++
	o.SetResourceVersion(strconv.Itoa(r.last))
}

// Last returns the number of the newest version of any object.
func (r *Revisions) Last() int { return r.last }

// Fresh returns whether next was made from the current version of its object. A blind write does not ask.
func Fresh(current, next Object, blind bool) bool {
	return current.GetUID() == next.GetUID() && (blind || current.GetResourceVersion() == next.GetResourceVersion())
}

// Versions are all versions of objects by their names, the oldest first. A version is never changed: whoever is behind still sees it.
type Versions[T any] map[string][]T

// Add stores the next version of an object.
func (v Versions[T]) Add(name string, object T) { v[name] = append(v[name], object) }

// Newest returns the newest version of an object, the zero value if there is none.
func (v Versions[T]) Newest(name string) T { return v.At(name, len(v[name])) }

// At returns the newest of the first so many versions of an object, the zero value if there are none.
func (v Versions[T]) At(name string, seen int) (object T) {
	if seen > 0 {
		object = v[name][seen-1]
	}
	return object
}

// Seen is how many versions of each object somebody has seen.
type Seen map[string]int

// CatchUp sees more versions, and leaves out as many of those of each object as are drawn.
func (v Versions[T]) CatchUp(seen Seen, draw func(n int) int) {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if news := len(v[name]) - seen[name]; news > 0 {
			seen[name] += news - draw(news+1)
		}
	}
}
