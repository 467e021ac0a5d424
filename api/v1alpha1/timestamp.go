package v1alpha1

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Timestamp is a time with microseconds. It reads every form of RFC 3339, with and without a fraction of a second: metav1.MicroTime reads only
// those with six digits, and an object with any other could be stored and not be read again. The pattern refuses what the format date-time allows
// and Go cannot read, such as a lower-case t or an offset of 99 hours: nobody could read any list with such an object.
//
// +kubebuilder:object:generate=false
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Format=date-time
// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
type Timestamp struct {
	metav1.MicroTime
}

// NewTimestamp makes a Timestamp.
func NewTimestamp(t time.Time) *Timestamp {
	return &Timestamp{metav1.NewMicroTime(t.UTC().Truncate(time.Microsecond))}
}

const timestampFormat = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t Timestamp) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format(timestampFormat))
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Timestamp) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parsed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return err
	}
	*t = *NewTimestamp(parsed)
	return nil
}

// DeepCopyInto copies the time.
func (t *Timestamp) DeepCopyInto(out *Timestamp) { *out = *t }

// DeepCopy copies the time.
func (t *Timestamp) DeepCopy() *Timestamp {
	if t == nil {
		return nil
	}
	out := *t
	return &out
}
