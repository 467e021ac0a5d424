package drain

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Look is a value that several tenants need. It is read once, when the first of them asks for it.
type Look[T any] struct {
	reader client.Reader
	read   func(context.Context, client.Reader) (T, error)
	once   sync.Once
	seen   T
	err    error
}

// NewLook returns a look that reads through r when it is first taken.
func NewLook[T any](r client.Reader, read func(context.Context, client.Reader) (T, error)) *Look[T] {
	return &Look[T]{reader: r, read: read}
}

// Take reads the value, or returns what was read before.
func (l *Look[T]) Take(ctx context.Context) (T, error) {
	l.once.Do(func() { l.seen, l.err = l.read(ctx, l.reader) })
	return l.seen, l.err
}
