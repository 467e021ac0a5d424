package drain

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Look is what several tenants rest on. It is read once, when one of them is first asked.
type Look[T any] struct {
	reader client.Reader
	read   func(context.Context, client.Reader) (T, error)
	once   sync.Once
	seen   T
	err    error
}

// NewLook makes a look that has not been taken yet.
func NewLook[T any](r client.Reader, read func(context.Context, client.Reader) (T, error)) *Look[T] {
	return &Look[T]{reader: r, read: read}
}

// Take reads, or says what was read.
func (l *Look[T]) Take(ctx context.Context) (T, error) {
	l.once.Do(func() { l.seen, l.err = l.read(ctx, l.reader) })
	return l.seen, l.err
}
