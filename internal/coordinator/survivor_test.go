package coordinator

import (
	"context"
	"errors"

	"github.com/ebb-dev/ebb/internal/node"
)

// notAlone keeps a test of elections among candidates from having survivors.
func notAlone(context.Context, *node.Epoch) error { return errors.New("not alone") }
